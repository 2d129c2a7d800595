/* Launches from C, one after another: what a launch costs on the host where nothing but the driver is called.
   Built and loaded by host_calls.py. */
typedef int (*Launch)(void *configuration, void *function, void **parameters, void **extra);

int launch_many(Launch launch, void *configuration, void *function, void **parameters, int number) {
    int status = 0;
    for (int n = 0; n < number; n++) status |= launch(configuration, function, parameters, 0);
    return status;
}

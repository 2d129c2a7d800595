/* The compiled launcher: launches calls that were met before, with no Python between the arguments and the driver.

   compiled.py builds and loads it, replays.py says how Python's launcher uses it. Whatever is not known here is
   answered by False, and Python's launcher does the call from the start: nothing has been launched then. */
#include "form.h"
#include "calls.h"

/* ---- Replay and Again: what is called ------------------------------------------------------------------------------- */

/* Replay(calls, config, head, stream)(args, kwargs) launches a call of a launcher; `stream` is None for the current one.
   Again(calls, config, head, form, python)(values) launches with the values of a call: its pointers and numbers. What it
   does not know it leaves to `python`, which gives True or False as well. `head` is how the driver wants `config`. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *calls, *config, *form, *python; /* `form` is a weak reference; the last two are NULL in a Replay */
    char head[HEAD_BYTES];
    int has_stream;
    uint64_t stream;
} Replay;

static PyTypeObject *form_type, *calls_type;

/* Return whether there was a launch; NULL where there is an error, as is one that `dismiss` lets stay. */
static PyObject *told(int launched) {
    if (launched <= 0 && PyErr_Occurred()) return NULL;
    return Py_NewRef(launched ? Py_True : Py_False);
}

static PyObject *replay_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names) {
    Replay *self = (Replay *)callable;
    Calls *calls = (Calls *)self->calls;
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL || !PyTuple_Check(args[0]) || !PyDict_Check(args[1]))
        return unfit("called a launcher"), NULL;
    Gathered g;
    if (PyDict_GET_SIZE(args[1]) || !is_unchanged(calls)) return told(0);
    Form *form = (Form *)met(calls, PySequence_Fast_ITEMS(args[0]), PyTuple_GET_SIZE(args[0]), &g);
    if (form == NULL) return told(0);
    uint64_t stream = self->stream;
    int done = self->has_stream ? 1 : current_stream(form, &stream);
    if (done > 0) done = launch(form, self->config, self->head, stream, g.values);
    Py_DECREF(form);
    return told(done);
}

/* Take the value of a pointer or a number from Python's object, as `struct` would. */
static int take_value(PyObject *object, Value *value) {
    int overflow = 0;
    if (PyFloat_Check(object)) *value = (Value){'f', {.real = PyFloat_AS_DOUBLE(object)}};
    else if (PyLong_Check(object)) {
        *value = (Value){PyBool_Check(object) ? 'b' : 'i', {.integer = PyLong_AsLongLongAndOverflow(object, &overflow)}};
    } else if (PyIndex_Check(object)) { /* an int of NumPy's */
        PyObject *number = PyNumber_Index(object);
        if (number != NULL) *value = (Value){'i', {.integer = PyLong_AsLongLongAndOverflow(number, &overflow)}};
        Py_XDECREF(number);
    } else *value = (Value){'f', {.real = PyFloat_AsDouble(object)}};
    return PyErr_Occurred() ? dismiss() : !overflow;
}

static int launch_again(Replay *self, PyObject *values) {
    Calls *calls = (Calls *)self->calls;
    Value taken[MAX_ARGUMENTS];
    uint64_t stream = 0;
    if (!PyTuple_Check(values) || calls->is_closed || !is_unchanged(calls)) return 0;
    Form *form = (Form *)referred(self->form);
    if (form == NULL) return 0;
    int done = PyTuple_GET_SIZE(values) == form->values;
    for (Py_ssize_t n = 0; done && n < form->values; n++) done = take_value(PyTuple_GET_ITEM(values, n), &taken[n]);
    if (done) done = current_stream(form, &stream);
    if (done > 0) done = launch(form, self->config, self->head, stream, taken);
    Py_DECREF(form);
    return done;
}

static PyObject *again_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names) {
    Replay *self = (Replay *)callable;
    if (PyVectorcall_NARGS(flags) != 1 || names != NULL) return unfit("called a launch"), NULL;
    int done = launch_again(self, args[0]);
    return done || PyErr_Occurred() ? told(done) : PyObject_CallOneArg(self->python, args[0]);
}

static int take_config(Replay *self, PyObject *calls, PyObject *config, PyObject *head) {
    if (self->calls != NULL || PyBytes_GET_SIZE(head) != HEAD_BYTES) return unfit("made a configuration");
    memcpy(self->head, PyBytes_AS_STRING(head), HEAD_BYTES);
    self->calls = Py_NewRef(calls), self->config = Py_NewRef(config);
    return 0;
}

static int replay_init(Replay *self, PyObject *args, PyObject *kwargs) {
    PyObject *calls, *config, *head, *stream;
    if (!PyArg_ParseTuple(args, "O!OO!O", calls_type, &calls, &config, &PyBytes_Type, &head, &stream)) return -1;
    self->has_stream = stream != Py_None;
    if (self->has_stream) self->stream = PyLong_AsUnsignedLongLong(stream);
    if (PyErr_Occurred()) return -1;
    self->call = replay_call;
    return take_config(self, calls, config, head);
}

static int again_init(Replay *self, PyObject *args, PyObject *kwargs) {
    PyObject *calls, *config, *head, *form, *python;
    if (!PyArg_ParseTuple(args, "O!OO!O!O", calls_type, &calls, &config, &PyBytes_Type, &head, form_type, &form,
                          &python) ||
        take_config(self, calls, config, head) < 0)
        return -1;
    self->call = again_call;
    self->python = Py_NewRef(python);
    self->form = PyWeakref_NewRef(form, NULL);
    return self->form == NULL ? -1 : 0;
}

static int replay_traverse(Replay *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->calls);
    Py_VISIT(self->config);
    Py_VISIT(self->form);
    Py_VISIT(self->python);
    return 0;
}

static int replay_clear(Replay *self) {
    Py_CLEAR(self->calls);
    Py_CLEAR(self->config);
    Py_CLEAR(self->form);
    Py_CLEAR(self->python);
    return 0;
}

static void replay_dealloc(Replay *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    replay_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef replay_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Replay, call), READONLY, NULL},
    {"calls", T_OBJECT, offsetof(Replay, calls), READONLY, NULL},
    {"config", T_OBJECT, offsetof(Replay, config), READONLY, NULL}, {0}};

/* ---- Read: what is passed, of arguments that were met before --------------------------------------------------------- */

/* Read(calls, python, arrays, steady)(*arguments) gives what `python` gives for them: a reading, or None. `arrays` and
   `steady` are as in `take_types`. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *calls, *python;
} Read;

static PyObject *reading_of(PyObject *call, const Gathered *g) {
    PyObject *values = PyTuple_New(g->value_count), *reading = NULL;
    for (Py_ssize_t n = 0; values != NULL && n < g->value_count; n++) {
        const Value *value = &g->values[n];
        PyObject *object = value->kind == 'p' ? python_value(value) : Py_NewRef(g->sources[n]);
        if (object == NULL) Py_CLEAR(values);
        else PyTuple_SET_ITEM(values, n, object);
    }
    PyObject *described = PyTuple_New(0);
    if (values != NULL && described != NULL) reading = PyTuple_Pack(3, call, values, described);
    Py_XDECREF(values), Py_XDECREF(described);
    return reading;
}

static PyObject *read_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names) {
    Read *self = (Read *)callable;
    Calls *calls = (Calls *)self->calls;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    Gathered g;
    PyObject *call = names == NULL ? met(calls, args, count, &g) : NULL, *reading;
    if (call != NULL) {
        reading = reading_of(call, &g);
        Py_DECREF(call);
        return reading;
    }
    if (PyErr_Occurred()) return NULL;
    reading = PyObject_Vectorcall(self->python, args, (size_t)count, names);
    if (reading != NULL && PyTuple_Check(reading) && names == NULL &&
        remember(calls, args, count, PyTuple_GET_ITEM(reading, 1), PyTuple_GET_ITEM(reading, 0)) < 0)
        Py_CLEAR(reading);
    return reading;
}

static int read_init(Read *self, PyObject *args, PyObject *kwargs) {
    PyObject *calls, *python, *arrays, *steady;
    if (!PyArg_ParseTuple(args, "O!OO!O!", calls_type, &calls, &python, &PyDict_Type, &arrays, &PyTuple_Type, &steady))
        return -1;
    if (self->calls != NULL) return unfit("late a change");
    int done = take_types((Calls *)calls, arrays, steady);
    if (done <= 0) return done < 0 ? -1 : unfit("shown an array");
    self->calls = Py_NewRef(calls), self->python = Py_NewRef(python), self->call = read_call;
    return 0;
}

static int read_traverse(Read *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->calls);
    Py_VISIT(self->python);
    return 0;
}

static int read_clear(Read *self) {
    Py_CLEAR(self->calls);
    Py_CLEAR(self->python);
    return 0;
}

static void read_dealloc(Read *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    read_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef read_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Read, call), READONLY, NULL}, {0}};

/* ---- Prepared: a launch with everything packed ----------------------------------------------------------------------- */

/* Prepared(launch, get_context, context, configuration, handle, parameters, finish)() launches from memory that stays.
   finish(status) is called with what the driver refused with, or 0 where the thread is in another context. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *finish;
    Launch launch;
    GetContext get_context;
    void *context, *configuration, *handle, **parameters;
} Prepared;

static PyObject *prepared_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names) {
    Prepared *self = (Prepared *)callable;
    void *context = NULL;
    int status = 0, is_here = 1;
    if (PyVectorcall_NARGS(flags) != 0 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "a prepared launch takes no arguments");
        return NULL;
    }
    if (self->get_context != NULL) is_here = self->get_context(&context) == 0 && context == self->context;
    if (is_here) {
        Launch launch = self->launch;
        Py_BEGIN_ALLOW_THREADS
        status = launch(self->configuration, self->handle, self->parameters, NULL);
        Py_END_ALLOW_THREADS
        if (status == 0) Py_RETURN_NONE;
    }
    return PyObject_CallFunction(self->finish, "i", status);
}

static int prepared_init(Prepared *self, PyObject *args, PyObject *kwargs) {
    unsigned long long launch, get_context, context, configuration, handle, parameters;
    PyObject *finish;
    if (self->finish != NULL) return unfit("late a change");
    if (!PyArg_ParseTuple(args, "KKKKKKO", &launch, &get_context, &context, &configuration, &handle, &parameters, &finish))
        return -1;
    self->call = prepared_call;
    self->launch = (Launch)(uintptr_t)launch, self->get_context = (GetContext)(uintptr_t)get_context;
    self->context = (void *)(uintptr_t)context, self->configuration = (void *)(uintptr_t)configuration;
    self->handle = (void *)(uintptr_t)handle, self->parameters = (void **)(uintptr_t)parameters;
    self->finish = Py_NewRef(finish);
    return 0;
}

static int prepared_traverse(Prepared *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->finish);
    return 0;
}

static int prepared_clear(Prepared *self) {
    Py_CLEAR(self->finish);
    return 0;
}

static void prepared_dealloc(Prepared *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    prepared_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef prepared_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Prepared, call), READONLY, NULL},
    {"finish", T_OBJECT, offsetof(Prepared, finish), READONLY, NULL}, {0}};

/* ---- the module ------------------------------------------------------------------------------------------------------- */

static PyMemberDef form_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Form, weakrefs), READONLY, NULL}, {0}};

#define SLOTS(name, init, members, ...)                                                                             \
    static PyType_Slot name##_slots[] = {{Py_tp_new, PyType_GenericNew}, {Py_tp_init, init},                        \
                                         {Py_tp_members, members}, __VA_ARGS__, {0}};
#define COLLECTED(of) {Py_tp_dealloc, of##_dealloc}, {Py_tp_traverse, of##_traverse}, {Py_tp_clear, of##_clear}

SLOTS(form, form_init, form_members, COLLECTED(form))
SLOTS(calls, calls_init, calls_members, COLLECTED(calls), {Py_tp_methods, calls_methods})
SLOTS(replay, replay_init, replay_members, COLLECTED(replay), {Py_tp_call, PyVectorcall_Call})
SLOTS(again, again_init, replay_members, COLLECTED(replay), {Py_tp_call, PyVectorcall_Call})
SLOTS(reads, read_init, read_members, COLLECTED(read), {Py_tp_call, PyVectorcall_Call})
SLOTS(prepared, prepared_init, prepared_members, COLLECTED(prepared), {Py_tp_call, PyVectorcall_Call})

#define TYPE_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)
static PyType_Spec specs[] = {
    {"tilewright_launcher.Form", sizeof(Form), 0, TYPE_FLAGS, form_slots},
    {"tilewright_launcher.Calls", sizeof(Calls), 0, TYPE_FLAGS, calls_slots},
    {"tilewright_launcher.Replay", sizeof(Replay), 0, TYPE_FLAGS | Py_TPFLAGS_HAVE_VECTORCALL, replay_slots},
    {"tilewright_launcher.Again", sizeof(Replay), 0, TYPE_FLAGS | Py_TPFLAGS_HAVE_VECTORCALL, again_slots},
    {"tilewright_launcher.Read", sizeof(Read), 0, TYPE_FLAGS | Py_TPFLAGS_HAVE_VECTORCALL, reads_slots},
    {"tilewright_launcher.Prepared", sizeof(Prepared), 0,
     TYPE_FLAGS | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_BASETYPE, prepared_slots}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tilewright_launcher", NULL, -1, NULL};

PyMODINIT_FUNC PyInit_tilewright_launcher(void) {
    static const char *const names[] = {"Form", "Calls", "Replay", "Again", "Read", "Prepared"};
    PyObject *module = PyModule_Create(&definition), *types[6];
    if (module == NULL) return NULL;
    for (int n = 0; n < 6; n++) {
        types[n] = PyType_FromSpec(&specs[n]);
        if (types[n] == NULL || PyModule_AddObjectRef(module, names[n], types[n]) < 0) return NULL;
    }
    form_type = (PyTypeObject *)types[0], calls_type = (PyTypeObject *)types[1];
    name_handle = PyUnicode_InternFromString("handle"), name_value = PyUnicode_InternFromString("value");
    name_is_as_seen = PyUnicode_InternFromString("_is_as_seen"), name_watched = PyUnicode_InternFromString("watched");
    if (!name_handle || !name_value || !name_is_as_seen || !name_watched) return NULL;
    return module;
}

/* What packs the parameters of calls of one kind and launches them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define MAX_ARGUMENTS 64
#define MAX_RANK 16
#define MAX_WORDS (MAX_ARGUMENTS * 8) /* of a key; a call with more is left to Python */
#define MAX_BLOCK 4608                /* bytes of a configuration and of all parameters */
#define MAX_PARAMETERS 256
#define MAX_MAPS 16
#define MAP_BYTES 128
#define HEAD_BYTES 28    /* of a CUlaunchConfig: grid, block, shared memory */
#define STREAM_OFFSET 32 /* of its stream */

typedef int (*Launch)(void *configuration, void *function, void **parameters, void **extra);
typedef int (*GetContext)(void **context);

/* The value of an argument: a pointer ('p'), an int ('i'), a bool ('b') or a float ('f'). */
typedef struct {
    char kind;
    union { uint64_t pointer; int64_t integer; double real; } as;
} Value;

static PyObject *name_handle, *name_value; /* of attributes */

/* ---- Form: what packs and launches calls of one kind ------------------------------------------------------------ */

typedef struct { int place, offset; char format; } Slot;   /* a parameter that changes from call to call */
typedef struct { int written, read; int64_t low, high; } Pair; /* arrays whose pointers must not be so near */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *function, *stream_of, *ordinal, *keep, *finish, *admitted, *maps, *layouts; /* the last three may be None */
    PyObject *target, *target_config; /* what `admitted` gave last, for which configuration and stream */
    uint64_t target_stream;
    void *handle, *target_handle;
    int is_kept;
    PyObject *mapped; /* the tensor maps encoded last, for the values in `mapped_for` */
    uint64_t mapped_for[MAX_MAPS * 2];
    Launch launch;
    GetContext get_context; /* NULL where there is one device */
    void *context;
    unsigned shared_bytes;
    Py_ssize_t size, values, parameter_count, slot_count, pair_count, map_count, map_key_count;
    char *block; /* what every launch begins with: extents and strides are in it */
    int *parameters, map_key[MAX_MAPS * 2];
    Slot *slots;
    Pair *pairs;
} Form;

static int unfit(const char *what) {
    PyErr_Format(PyExc_ValueError, "the compiled launcher does not take so %s", what);
    return -1;
}

/* Drop an error that Python's launcher will meet as well. One that ends a program, such as KeyboardInterrupt, stays: it
   comes once. Return 0. */
static int dismiss(void) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    return 0;
}

static int take_numbers(PyObject *sequence, int *numbers, Py_ssize_t most, Py_ssize_t *count) {
    *count = PyTuple_GET_SIZE(sequence);
    if (*count > most) return unfit("many parameters");
    for (Py_ssize_t n = 0; n < *count; n++) {
        numbers[n] = (int)PyLong_AsLong(PyTuple_GET_ITEM(sequence, n));
        if (numbers[n] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static int form_init(Form *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function", "handle", "launch", "get_context", "context", "stream_of", "ordinal", "keep",
                            "finish", "admitted", "maps", "layouts", "shared_bytes", "values", "block", "parameters",
                            "slots", "pairs", "map_count", "map_key", NULL};
    PyObject *function, *stream_of, *ordinal, *keep, *finish, *admitted, *maps, *layouts, *parameters, *slots, *pairs, *key;
    unsigned long long handle, launch, get_context, context;
    const char *block;
    if (self->block != NULL) return unfit("late a change");
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OKKKKOOO!OOOOIny#O!O!O!nO!", names, &function, &handle, &launch,
                                     &get_context, &context, &stream_of, &ordinal, &PySet_Type, &keep, &finish,
                                     &admitted, &maps, &layouts, &self->shared_bytes, &self->values, &block, &self->size,
                                     &PyTuple_Type, &parameters, &PyTuple_Type, &slots, &PyTuple_Type, &pairs,
                                     &self->map_count, &PyTuple_Type, &key))
        return -1;
    if (self->size > MAX_BLOCK || self->size < STREAM_OFFSET + 8) return unfit("large a block");
    self->slot_count = PyTuple_GET_SIZE(slots), self->pair_count = PyTuple_GET_SIZE(pairs);
    if (self->values > MAX_ARGUMENTS || self->slot_count > MAX_ARGUMENTS || self->pair_count > MAX_ARGUMENTS ||
        self->map_count > MAX_MAPS)
        return unfit("many arguments");
    self->parameter_count = PyTuple_GET_SIZE(parameters);
    self->block = PyMem_Malloc((size_t)self->size);
    self->parameters = PyMem_Calloc((size_t)self->parameter_count + 1, sizeof *self->parameters);
    self->slots = PyMem_Calloc((size_t)self->slot_count + 1, sizeof *self->slots);
    self->pairs = PyMem_Calloc((size_t)self->pair_count + 1, sizeof *self->pairs);
    if (!self->block || !self->parameters || !self->slots || !self->pairs) return PyErr_NoMemory(), -1;
    memcpy(self->block, block, (size_t)self->size);
    if (take_numbers(parameters, self->parameters, MAX_PARAMETERS - MAX_MAPS, &self->parameter_count) < 0 ||
        take_numbers(key, self->map_key, MAX_MAPS * 2, &self->map_key_count) < 0)
        return -1;
    for (Py_ssize_t n = 0; n < self->slot_count; n++) {
        Slot *slot = &self->slots[n];
        int format;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(slots, n), "iCi", &slot->place, &format, &slot->offset)) return -1;
        slot->format = (char)format;
        if (strchr("?bBhHiIqQfd", format) == NULL || slot->place < 0 || slot->place >= self->values || slot->offset < 0 ||
            slot->offset >= self->size)
            return unfit("formatted a parameter");
    }
    for (Py_ssize_t n = 0; n < self->pair_count; n++) {
        Pair *pair = &self->pairs[n];
        long long low, high;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, n), "iiLL", &pair->written, &pair->read, &low, &high)) return -1;
        pair->low = low, pair->high = high;
        if (pair->written < 0 || pair->written >= self->values || pair->read < 0 || pair->read >= self->values)
            return unfit("placed a pair");
    }
    for (Py_ssize_t n = 0; n < self->map_key_count; n++)
        if (self->map_key[n] < 0 || self->map_key[n] >= self->values) return unfit("placed a map");
    self->handle = self->target_handle = (void *)(uintptr_t)handle;
    self->launch = (Launch)(uintptr_t)launch;
    self->get_context = (GetContext)(uintptr_t)get_context;
    self->context = (void *)(uintptr_t)context;
    self->stream_of = Py_NewRef(stream_of), self->ordinal = Py_NewRef(ordinal), self->keep = Py_NewRef(keep);
    self->finish = Py_NewRef(finish), self->admitted = Py_NewRef(admitted), self->maps = Py_NewRef(maps);
    self->layouts = Py_NewRef(layouts), self->function = Py_NewRef(function), self->target = Py_NewRef(function);
    return 0;
}

#define EACH_OF_FORM(DO)                                                                                         \
    DO(self->function) DO(self->stream_of) DO(self->ordinal) DO(self->keep) DO(self->finish) DO(self->admitted)  \
    DO(self->maps) DO(self->layouts) DO(self->target) DO(self->target_config) DO(self->mapped)
#define VISIT(x) Py_VISIT(x);
#define CLEAR(x) Py_CLEAR(x);

static int form_traverse(Form *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    EACH_OF_FORM(VISIT)
    return 0;
}

static int form_clear(Form *self) {
    EACH_OF_FORM(CLEAR)
    return 0;
}

static void form_dealloc(Form *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    form_clear(self);
    PyMem_Free(self->block), PyMem_Free(self->parameters), PyMem_Free(self->slots), PyMem_Free(self->pairs);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Write a value as `struct` would; return whether it fits. */
static int pack(char *place, char format, const Value *value) {
    double real = value->kind == 'f' ? value->as.real : (double)value->as.integer;
    int64_t integer = value->as.integer;
#define WRITE(type, number) { type x = (type)(number); memcpy(place, &x, sizeof x); return 1; }
#define FITTING(type, low, high) { if (integer < (low) || integer > (high)) return 0; WRITE(type, integer) }
    if (format == 'Q' && value->kind == 'p') WRITE(uint64_t, value->as.pointer)
    if (value->kind == 'p') return 0;
    if (format == 'f') WRITE(float, real)
    if (format == 'd') WRITE(double, real)
    if (format == '?') WRITE(char, real != 0)
    if (value->kind == 'f') return 0;
    switch (format) {
        case 'b': FITTING(int8_t, INT8_MIN, INT8_MAX)
        case 'B': FITTING(uint8_t, 0, UINT8_MAX)
        case 'h': FITTING(int16_t, INT16_MIN, INT16_MAX)
        case 'H': FITTING(uint16_t, 0, UINT16_MAX)
        case 'i': FITTING(int32_t, INT32_MIN, INT32_MAX)
        case 'I': FITTING(uint32_t, 0, UINT32_MAX)
        case 'q': WRITE(int64_t, integer)
        case 'Q': FITTING(uint64_t, 0, INT64_MAX)
    }
    return 0;
}

static PyObject *python_value(const Value *value) {
    switch (value->kind) {
        case 'p': return PyLong_FromUnsignedLongLong(value->as.pointer);
        case 'i': return PyLong_FromLongLong(value->as.integer);
        case 'b': return PyBool_FromLong(value->as.integer != 0);
    }
    return PyFloat_FromDouble(value->as.real);
}

static PyObject *python_values(const Form *form, const Value *values) {
    PyObject *all = PyTuple_New(form->values);
    for (Py_ssize_t n = 0; all != NULL && n < form->values; n++) {
        PyObject *value = python_value(&values[n]);
        if (value == NULL) Py_CLEAR(all);
        else PyTuple_SET_ITEM(all, n, value);
    }
    return all;
}

/* Copy the tensor maps of a call to `place`; those encoded last are taken where they are for the same values. */
static int put_maps(Form *form, const Value *values, char *place) {
    uint64_t words[MAX_MAPS * 2];
    size_t bytes = (size_t)form->map_count * MAP_BYTES, key_bytes = (size_t)form->map_key_count * sizeof *words;
    for (Py_ssize_t n = 0; n < form->map_key_count; n++) words[n] = values[form->map_key[n]].as.pointer;
    if (form->mapped == NULL || memcmp(words, form->mapped_for, key_bytes) != 0) {
        PyObject *given = python_values(form, values), *encoded = NULL;
        if (given != NULL) encoded = PyObject_CallFunctionObjArgs(form->maps, form->layouts, given, NULL);
        Py_XDECREF(given);
        if (encoded == NULL) return -1;
        if (!PyBytes_Check(encoded) || (size_t)PyBytes_GET_SIZE(encoded) != bytes) {
            Py_DECREF(encoded);
            return unfit("encoded a map");
        }
        memcpy(form->mapped_for, words, key_bytes);
        memcpy(place, PyBytes_AS_STRING(encoded), bytes);
        Py_XSETREF(form->mapped, encoded);
        return 0;
    }
    memcpy(place, PyBytes_AS_STRING(form->mapped), bytes);
    return 0;
}

/* Ask what is launched on a stream, of a kernel whose blocks run together, unless that was asked just before. */
static int admit(Form *form, PyObject *config, uint64_t stream) {
    if (form->target_config == config && form->target_stream == stream) return 0;
    PyObject *number = PyLong_FromUnsignedLongLong(stream), *target = NULL, *handle = NULL, *value = NULL;
    int status = -1;
    if (number != NULL) target = PyObject_CallFunctionObjArgs(form->admitted, form->function, config, number, NULL);
    if (target != NULL) handle = PyObject_GetAttr(target, name_handle);
    if (handle != NULL) value = PyObject_GetAttr(handle, name_value);
    if (value != NULL) {
        void *address = PyLong_AsVoidPtr(value);
        if (!PyErr_Occurred()) {
            form->target_handle = address, form->target_stream = stream, form->is_kept = 0, status = 0;
            PyObject *old = form->target, *old_config = form->target_config;
            form->target = Py_NewRef(target), form->target_config = Py_NewRef(config);
            Py_XDECREF(old);
            Py_XDECREF(old_config);
        }
    }
    Py_XDECREF(number), Py_XDECREF(target), Py_XDECREF(handle), Py_XDECREF(value);
    return status;
}

/* Launch with the values of a call: 1 if that is done, 0 if Python has to do it, -1 with an error set. */
static int launch(Form *form, PyObject *config, const char *head, uint64_t stream, const Value *values) {
    char memory[MAX_BLOCK + MAX_MAPS * MAP_BYTES + 128];
    void *parameters[MAX_PARAMETERS];
    char *block = (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63); /* of the alignment that tensor maps need */
    char *maps = block + ((form->size + 63) & ~(Py_ssize_t)63);
    unsigned shared;
    memcpy(&shared, head + 24, sizeof shared);
    if (shared != form->shared_bytes) return 0;
    for (Py_ssize_t n = 0; n < form->pair_count; n++) {
        const Pair *pair = &form->pairs[n];
        uint64_t written = values[pair->written].as.pointer, read = values[pair->read].as.pointer;
        int64_t apart = (int64_t)(written - read);
        if ((written | read) >> 62 || (pair->low < apart && apart < pair->high)) return 0;
    }
    memcpy(block, form->block, (size_t)form->size);
    memcpy(block, head, HEAD_BYTES);
    memcpy(block + STREAM_OFFSET, &stream, sizeof stream);
    for (Py_ssize_t n = 0; n < form->slot_count; n++) {
        const Slot *slot = &form->slots[n];
        if (!pack(block + slot->offset, slot->format, &values[slot->place])) return 0;
    }
    if (form->get_context != NULL) {
        void *context = NULL;
        if (form->get_context(&context) != 0 || context != form->context) return 0;
    }
    if (form->admitted != Py_None && admit(form, config, stream) < 0) return -1;
    PyObject *target = Py_NewRef(form->target);
    void *handle = form->target_handle;
    if (stream != 0 && !form->is_kept) {
        if (PySet_Add(form->keep, target) < 0) goto failed;
        form->is_kept = 1;
    }
    if (form->map_count && put_maps(form, values, maps) < 0) goto failed;
    Py_ssize_t count = form->parameter_count;
    for (Py_ssize_t n = 0; n < count; n++) parameters[n] = block + form->parameters[n];
    for (Py_ssize_t n = 0; n < form->map_count; n++) parameters[count + n] = maps + n * MAP_BYTES;
    Launch driver = form->launch;
    int status;
    Py_BEGIN_ALLOW_THREADS /* a full queue makes the driver wait, for host functions of the stream too */
    status = driver(block, handle, parameters, NULL);
    Py_END_ALLOW_THREADS
    if (status != 0) {
        PyObject *done = PyObject_CallFunction(form->finish, "iOOKK", status, target, config,
                                               (unsigned long long)(uintptr_t)block,
                                               (unsigned long long)(uintptr_t)parameters);
        if (done == NULL) goto failed;
        Py_DECREF(done);
    }
    Py_DECREF(target);
    return 1;
failed:
    Py_DECREF(target);
    return -1;
}

/* Ask the framework for the current stream. */
static int current_stream(Form *form, uint64_t *stream) {
    PyObject *number = PyObject_CallOneArg(form->stream_of, form->ordinal);
    if (number == NULL) return -1;
    int is_int = PyLong_Check(number);
    if (is_int) *stream = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (is_int && !(*stream == (uint64_t)-1 && PyErr_Occurred())) return 1;
    return dismiss();
}

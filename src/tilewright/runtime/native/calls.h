/* The kinds of calls of one kernel that were met before, found by what is read of their arguments. */
#define MAX_ENTRIES 1024 /* kinds of calls of one kernel */
#define MAX_ADDED 4096   /* kinds added with none met again: such calls seldom repeat, and from there on */
#define SKIPPED 64       /* one of so many is added, so that calls that repeat later are met */
#define MAX_READERS 4    /* types of arrays */
#define LOW_ADDRESSES (UINT64_C(1) << 33) /* as in arrays.py: of freed memory, or Python looks closer */

/* DLPack's DLTensor and DLPackExchangeAPI, version 1. */
typedef struct {
    void *data;
    int32_t device_type, device_id, rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Array;
typedef int (*ReadArray)(void *object, Array *out);
typedef struct {
    uint32_t major, minor;
    void *previous, *allocate, *export_managed, *import_managed;
    ReadArray read;
    void *current_stream;
} ExchangeAPI;

static PyObject *name_is_as_seen, *name_watched; /* of attributes */

/* ---- Calls: the kinds of calls of one kernel, with what runs each ------------------------------------------------- */

typedef struct {
    uint64_t hash;
    Py_ssize_t word_count;
    PyObject *form;              /* a weak reference: it lives as long as Python's launcher remembers the call */
    PyObject *types, *constants; /* kept, so that their addresses are not those of others */
    uint64_t words[];
} Entry;

typedef struct { PyTypeObject *type; ReadArray read; } Reader;

typedef struct {
    PyObject_HEAD
    PyObject *observers, *captures, *is_constant, *steady; /* `steady`: see gather_constant */
    Py_ssize_t arity, used, capacity, added, skipped;
    char is_closed;
    int reader_count;
    Reader readers[MAX_READERS];
    Entry **entries;
} Calls;

/* What is read of the arguments of a call: words that are equal for calls of one kind, values, compile-time arguments. */
typedef struct {
    Py_ssize_t word_count, value_count, constant_count;
    uint64_t hash;
    uint64_t words[MAX_WORDS];
    Value values[MAX_ARGUMENTS];
    PyObject *constants[MAX_ARGUMENTS], *sources[MAX_ARGUMENTS]; /* `sources` are the arguments of the values */
} Gathered;

static void free_entry(Entry *entry) {
    Py_XDECREF(entry->form), Py_XDECREF(entry->types), Py_XDECREF(entry->constants);
    PyMem_Free(entry);
}

static void drop_entries(Calls *self) {
    Entry **entries = self->entries;
    Py_ssize_t capacity = self->capacity;
    self->entries = NULL, self->capacity = self->used = 0; /* first: what is freed may call in here */
    for (Py_ssize_t n = 0; n < capacity; n++)
        if (entries[n] != NULL) free_entry(entries[n]);
    PyMem_Free(entries);
}

static int calls_init(Calls *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"observers", "captures", "is_constant", NULL};
    PyObject *observers, *captures, *is_constant;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!", names, &PyDict_Type, &observers, &captures, &PyBytes_Type,
                                     &is_constant))
        return -1;
    if (self->observers != NULL) return unfit("late a change");
    self->arity = PyBytes_GET_SIZE(is_constant);
    if (self->arity > MAX_ARGUMENTS) return unfit("many arguments");
    self->observers = Py_NewRef(observers), self->captures = Py_NewRef(captures);
    self->is_constant = Py_NewRef(is_constant);
    return (self->steady = PySet_New(NULL)) == NULL ? -1 : 0;
}

static int calls_traverse(Calls *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->observers);
    Py_VISIT(self->captures);
    Py_VISIT(self->steady);
    for (int n = 0; n < self->reader_count; n++) Py_VISIT(self->readers[n].type);
    for (Py_ssize_t n = 0; n < self->capacity; n++)
        if (self->entries[n] != NULL) {
            Py_VISIT(self->entries[n]->form);
            Py_VISIT(self->entries[n]->types);
            Py_VISIT(self->entries[n]->constants);
        }
    return 0;
}

static int calls_clear(Calls *self) {
    drop_entries(self);
    for (int n = self->reader_count; n > 0; n = self->reader_count) {
        self->reader_count = n - 1;
        Py_CLEAR(self->readers[n - 1].type);
    }
    Py_CLEAR(self->observers);
    Py_CLEAR(self->captures);
    Py_CLEAR(self->is_constant);
    Py_CLEAR(self->steady);
    return 0;
}

static void calls_dealloc(Calls *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    calls_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static ReadArray reader_of(const Calls *self, PyTypeObject *type) {
    for (int n = 0; n < self->reader_count; n++)
        if (self->readers[n].type == type) return self->readers[n].read;
    return NULL;
}

/* Say whether a tensor may be one whose memory has its numbers with the other sign: a view with gaps, as of every other
   number of complex ones. */
static int may_be_negative(PyObject *tensor, const Array *array) {
    for (int n = 0; n < array->rank; n++)
        if (array->strides[n] == 1 && array->shape[n] != 1) return 0;
    PyObject *found = PyObject_CallMethod(tensor, "is_neg", NULL);
    if (found == NULL) PyErr_Clear();
    Py_XDECREF(found);
    return found != Py_False;
}

/* Put an array into what is gathered: all that a kernel is specialised on, or gets passed, and the pointer's alignment. */
static int gather_array(Gathered *g, PyObject *argument, ReadArray read) {
    Array array = {0};
    if (read(argument, &array) != 0) return dismiss(); /* the Python path says it */
    if (array.rank < 0 || array.rank > MAX_RANK || g->word_count + 3 + 2 * array.rank > MAX_WORDS) return 0;
    if (array.rank && (array.shape == NULL || array.strides == NULL)) return 0;
    uint64_t pointer = (uint64_t)(uintptr_t)array.data + array.byte_offset, low = pointer & 15, *words = g->words;
    words[g->word_count++] = (uint64_t)array.code | (uint64_t)array.bits << 8 | (uint64_t)array.lanes << 16 |
                             (uint64_t)array.rank << 32 | (low & (~low + 1)) << 48;
    words[g->word_count++] = (uint64_t)(uint32_t)array.device_type << 32 | (uint32_t)array.device_id;
    int is_empty = 0;
    for (int n = 0; n < array.rank; n++) {
        is_empty |= !array.shape[n];
        words[g->word_count++] = (uint64_t)array.shape[n];
    }
    if (pointer < LOW_ADDRESSES && !is_empty) return 0;
    for (int n = 0; n < array.rank; n++) words[g->word_count++] = (uint64_t)array.strides[n];
    if (may_be_negative(argument, &array)) return 0;
    g->values[g->value_count++] = (Value){'p', {.pointer = pointer}};
    return 1;
}

static int gather_number(Gathered *g, PyObject *argument) {
    Value value = {'f', {.real = 0}};
    if (PyFloat_CheckExact(argument)) value.as.real = PyFloat_AS_DOUBLE(argument);
    else if (PyBool_Check(argument)) value = (Value){'b', {.integer = argument == Py_True}};
    else if (PyLong_CheckExact(argument)) {
        int overflow = 0;
        value = (Value){'i', {.integer = PyLong_AsLongLongAndOverflow(argument, &overflow)}};
        if (overflow) return 0;
        g->words[g->word_count++] = INT32_MIN <= value.as.integer && value.as.integer <= INT32_MAX;
    } else return 0;
    g->values[g->value_count++] = value;
    return 1;
}

/* A compile-time argument counts by its value where it is a number, a text or a tuple of these, and else as the object
   that it is: with its hash, which Python looks it up by, or without where the type is one of the steady ones, or does
   not hash by value. `is_same` says the rest. */
static int gather_constant(const Calls *self, Gathered *g, PyObject *argument) {
    PyTypeObject *type = Py_TYPE(argument);
    uint64_t word = (uint64_t)(uintptr_t)argument;
    if (type->tp_hash != PyBaseObject_Type.tp_hash && PySet_Contains(self->steady, (PyObject *)type) == 0) {
        word = (uint64_t)PyObject_Hash(argument);
        if (word == (uint64_t)-1 && PyErr_Occurred()) return dismiss();
    }
    g->words[g->word_count++] = word;
    g->constants[g->constant_count++] = argument;
    return 1;
}

/* Return whether two compile-time arguments are one, of which the hashes are; no Python runs. */
static int is_same(PyObject *known, PyObject *given) {
    if (known == given) return 1;
    if (Py_TYPE(known) != Py_TYPE(given)) return 0;
    if (PyUnicode_CheckExact(given)) return PyUnicode_Compare(known, given) == 0;
    if (PyLong_CheckExact(given)) return PyObject_RichCompareBool(known, given, Py_EQ) == 1;
    if (PyFloat_CheckExact(given)) { /* 0.0 and -0.0 are equal, and NaN is not */
        double x = PyFloat_AS_DOUBLE(known), y = PyFloat_AS_DOUBLE(given);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(known) != PyTuple_GET_SIZE(given)) return 0;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(given); n++)
        if (!is_same(PyTuple_GET_ITEM(known, n), PyTuple_GET_ITEM(given, n))) return 0;
    return 1;
}

/* Read the arguments of a call; 0 where there is something that is not known here, or with an error that stays. */
static int gather(const Calls *self, PyObject *const *arguments, Py_ssize_t count, Gathered *g) {
    const char *is_constant = PyBytes_AS_STRING(self->is_constant);
    g->word_count = g->value_count = g->constant_count = 0;
    if (count != self->arity) return 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *argument = arguments[n];
        PyTypeObject *type = Py_TYPE(argument);
        ReadArray read;
        if (g->word_count + 2 > MAX_WORDS) return 0;
        g->sources[g->value_count] = argument;
        g->words[g->word_count++] = (uint64_t)(uintptr_t)type;
        if (is_constant[n] || argument == Py_None) {
            if (!gather_constant(self, g, argument)) return 0;
        } else if ((read = reader_of(self, type)) != NULL) {
            if (!gather_array(g, argument, read)) return 0;
        } else if (!gather_number(g, argument)) return 0;
    }
    uint64_t hash = (uint64_t)g->word_count;
    for (Py_ssize_t n = 0; n < g->word_count; n++) {
        hash = (hash ^ g->words[n]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    g->hash = hash;
    return 1;
}

static int is_entry_of(const Entry *entry, const Gathered *g) {
    if (entry->hash != g->hash || entry->word_count != g->word_count ||
        memcmp(entry->words, g->words, (size_t)g->word_count * sizeof *g->words) != 0)
        return 0;
    for (Py_ssize_t n = 0; n < g->constant_count; n++)
        if (!is_same(PyTuple_GET_ITEM(entry->constants, n), g->constants[n])) return 0;
    return 1;
}

/* Return where an entry is, or belongs. There is room: the table is at most half full. */
static Entry **place_of(const Calls *self, const Gathered *g) {
    Py_ssize_t mask = self->capacity - 1, place = (Py_ssize_t)(g->hash & (uint64_t)mask);
    while (self->entries[place] != NULL && !is_entry_of(self->entries[place], g)) place = (place + 1) & mask;
    return &self->entries[place];
}

static int grow(Calls *self) {
    if (self->used * 2 < self->capacity) return 0;
    if (self->used >= MAX_ENTRIES) drop_entries(self);
    Py_ssize_t capacity = self->capacity ? self->capacity * 2 : 8;
    Entry **entries = PyMem_Calloc((size_t)capacity, sizeof *entries);
    if (entries == NULL) return PyErr_NoMemory(), -1;
    for (Py_ssize_t n = 0; n < self->capacity; n++) {
        if (self->entries[n] == NULL) continue;
        Py_ssize_t place = (Py_ssize_t)(self->entries[n]->hash & (uint64_t)(capacity - 1));
        while (entries[place] != NULL) place = (place + 1) & (capacity - 1);
        entries[place] = self->entries[n];
    }
    PyMem_Free(self->entries);
    self->entries = entries, self->capacity = capacity;
    return 0;
}

/* Return a new reference to what a weak reference is of, NULL where that is gone. */
static PyObject *referred(PyObject *reference) {
    PyObject *form = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(reference, &form) < 0) PyErr_Clear();
#else
    form = PyWeakref_GetObject(reference);
    form = form == Py_None ? NULL : Py_XNewRef(form);
#endif
    return form;
}

/* Return whether the kernel would be traced as it was: nobody observes launches, and what it captures is the same.
   With 0 there may be an error that stays. */
static int is_unchanged(const Calls *self) {
    if (PyDict_GET_SIZE(self->observers)) return 0;
    PyObject *watched = PyObject_GetAttr(self->captures, name_watched);
    Py_ssize_t count = watched == NULL ? -1 : PyObject_Size(watched);
    Py_XDECREF(watched);
    if (count > 0) {
        PyObject *compare = PyObject_GetAttr(self->captures, name_is_as_seen), *same = NULL;
        if (compare != NULL) same = PyObject_CallNoArgs(compare);
        Py_XDECREF(compare);
        count = same == Py_True ? 0 : -1; /* Python's launcher looks closer */
        Py_XDECREF(same);
    }
    return count == 0 ? 1 : dismiss();
}

static int add_reader(Calls *self, PyObject *type, PyObject *capsule) {
    if (reader_of(self, (PyTypeObject *)type) != NULL) return 1;
    const ExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (api == NULL) return PyErr_Clear(), 0;
    if (api->major != 1 || api->read == NULL || !PyType_Check(type) || self->reader_count == MAX_READERS) return 0;
    self->readers[self->reader_count++] = (Reader){(PyTypeObject *)Py_NewRef(type), api->read};
    return 1;
}

/* Take the types of arrays, each with how its library shows them, and those of compile-time arguments that do not change;
   0 where an array cannot be read. */
static int take_types(Calls *self, PyObject *arrays, PyObject *steady) {
    PyObject *type, *capsule;
    Py_ssize_t position = 0;
    while (PyDict_Next(arrays, &position, &type, &capsule))
        if (!add_reader(self, type, capsule)) return 0;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(steady); n++)
        if (PySet_Add(self->steady, PyTuple_GET_ITEM(steady, n)) < 0) return -1;
    return 1;
}

/* Remember what runs calls like one with these arguments, of which Python read `values`; 0 where that cannot be. */
static int remember(Calls *self, PyObject *const *arguments, Py_ssize_t count, PyObject *values, PyObject *form) {
    Gathered g;
    if (self->added > MAX_ADDED && ++self->skipped % SKIPPED) return 0;
    if (self->is_closed || !gather(self, arguments, count, &g) ||
        g.value_count != PyTuple_GET_SIZE(values))
        return PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t n = 0; n < g.value_count; n++) { /* another thread may have changed an array meanwhile */
        if (g.values[n].kind != 'p') continue;
        PyObject *value = python_value(&g.values[n]);
        int same = value == NULL ? -1 : PyObject_RichCompareBool(value, PyTuple_GET_ITEM(values, n), Py_EQ);
        Py_XDECREF(value);
        if (same <= 0) return same;
    }
    if (grow(self) < 0) return -1;
    Entry *entry = PyMem_Calloc(1, sizeof *entry + (size_t)g.word_count * sizeof *g.words);
    if (entry == NULL) return PyErr_NoMemory(), -1;
    entry->hash = g.hash, entry->word_count = g.word_count;
    memcpy(entry->words, g.words, (size_t)g.word_count * sizeof *g.words);
    entry->form = PyWeakref_NewRef(form, NULL);
    entry->types = PyTuple_New(count), entry->constants = PyTuple_New(g.constant_count);
    if (entry->form == NULL || entry->types == NULL || entry->constants == NULL) return free_entry(entry), -1;
    for (Py_ssize_t n = 0; n < count; n++)
        PyTuple_SET_ITEM(entry->types, n, Py_NewRef((PyObject *)Py_TYPE(arguments[n])));
    for (Py_ssize_t n = 0; n < g.constant_count; n++) PyTuple_SET_ITEM(entry->constants, n, Py_NewRef(g.constants[n]));
    if (self->is_closed || !self->capacity) return free_entry(entry), 0; /* a collection may have run Python */
    Entry **place = place_of(self, &g), *old = *place;
    *place = entry;
    self->added++;
    if (old == NULL) self->used++;
    else free_entry(old);
    return 1;
}

/* add(arguments, values, form, arrays, steady): see `take_types` and `remember`. */
static PyObject *calls_add(Calls *self, PyObject *args) {
    PyObject *arguments, *values, *form, *arrays, *steady;
    if (!PyArg_ParseTuple(args, "O!O!OO!O!", &PyTuple_Type, &arguments, &PyTuple_Type, &values, &form, &PyDict_Type, &arrays,
                          &PyTuple_Type, &steady))
        return NULL;
    int done = take_types(self, arrays, steady);
    if (done > 0) done = remember(self, PySequence_Fast_ITEMS(arguments), PyTuple_GET_SIZE(arguments), values, form);
    return done < 0 ? NULL : Py_NewRef(done ? Py_True : Py_False);
}

/* Return a new reference to what was remembered for a call, NULL where there is nothing, or with an error that stays. */
static PyObject *met(Calls *self, PyObject *const *arguments, Py_ssize_t count, Gathered *g) {
    if (!self->used || !gather(self, arguments, count, g) || !self->used) return NULL;
    Entry *entry = *place_of(self, g);
    PyObject *form = entry == NULL ? NULL : referred(entry->form);
    if (form != NULL) self->added = 0;
    return form;
}

/* close(): forget all, and launch nothing any more. */
static PyObject *calls_close(Calls *self, PyObject *unused) {
    self->is_closed = 1;
    drop_entries(self);
    Py_RETURN_NONE;
}

static PyMemberDef calls_members[] = {{"is_closed", T_BOOL, offsetof(Calls, is_closed), READONLY, NULL}, {0}};

static PyMethodDef calls_methods[] = {
    {"add", (PyCFunction)calls_add, METH_VARARGS, NULL}, {"close", (PyCFunction)calls_close, METH_NOARGS, NULL}, {0}};

/* Calls of operators like earlier ones, with no Python between: the dispatcher would add nothing, and where the
   function only allocates and launches, that is done again from what the first call of the kind did.

   compiled.py builds and loads it, repeats.py says what is told to it. Whatever is not known here is answered by
   NotImplemented, and Python does the call from the start. */
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_map>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
namespace py = pybind11;

namespace tilewright {

static const int MAX_ARGUMENTS = 32, MAX_WORDS = 256;
static const size_t MAX_KINDS = 1024; /* of one operator; from there on its function is called each time */
static const int MAX_FAILURES = 16;   /* of one kind, of which a call could not be repeated */

[[noreturn]] static void fail() { /* with the error that Python has */
    python_error error;
    error.persist();
    throw error;
}

static py::object owned(PyObject *object) {
    if (object == nullptr) fail();
    return py::reinterpret_steal<py::object>(object);
}

/* A variable of Python that a function reads, or the code or defaults of one that it calls, and what it was; Ellipsis
   where there was nothing. */
struct Guard {
    py::object holder, name, value;
    bool holds() const {
        PyObject *now = PyDict_Check(holder.ptr())        ? PyDict_GetItemWithError(holder.ptr(), name.ptr())
                        : PyCell_Check(holder.ptr())      ? PyCell_GET(holder.ptr())
                        : PyUnicode_GET_LENGTH(name.ptr()) ? PyFunction_GetDefaults(holder.ptr())
                                                          : PyFunction_GetCode(holder.ptr());
        return (now == nullptr ? Py_Ellipsis : now) == value.ptr();
    }
};

static py::object borrowed(PyObject *object) { return py::reinterpret_borrow<py::object>(object); }

/* Without the interpreter's lock: an allocation may wait for the device. */
struct Unlocked {
    PyThreadState *state = PyEval_SaveThread();
    ~Unlocked() { PyEval_RestoreThread(state); }
};

struct Made { std::vector<int64_t> sizes, strides; at::TensorOptions options; };
struct Launch { py::object again, constants; std::vector<int> places; }; /* a place below 0 is a constant's */

struct Plan { /* what repeats a call */
    bool is_tuple;
    std::vector<Made> made;
    std::vector<size_t> results; /* places among those made */
    std::vector<Launch> launches;
};

/* What a backward function gets beside tensors: the inputs, Ellipsis in the place of each tensor.

   It is the memory of a tensor, which frees it: compiled autograd passes tensors on to a node, and refuses capsules. */
struct Kept {
    const Kept *self = this; /* the tensor's only element, which a copy of the tensor has, too */
    py::object finish, inputs;
    static const Kept &of(const Tensor &x) { return **(const Kept *const *)x.const_data_ptr(); }
    static void drop(void *kept) {
        py::gil_scoped_acquire lock;
        delete (Kept *)kept;
    }
};

/* Calls of one kind. */
struct Kind {
    bool is_new = true; /* its next call is watched */
    int failures = 0;
    std::vector<py::object> known; /* what the key has the addresses of */
    std::shared_ptr<const Plan> plan; /* none: the function is called */
    Tensor kept;                      /* the last `Kept` */
};

struct State {
    py::object function, watch, finish, places, defaults, observers;
    bool repeats, checks, may_be_none;
    int count; /* of the results; below 0 where they are a list */
    bool is_stale = false; /* a guard does not hold any more */
    std::vector<int> saved; /* places of inputs; -1 are the results, -2 is the first of them */
    std::vector<Guard> guards;
    std::unordered_map<std::string, std::shared_ptr<Kind>> kinds;
    std::string last; /* the key of the kind that was met last */
    std::shared_ptr<Kind> last_kind;
};

/* The inputs of a call, and the words by which calls of a kind are equal. */
struct Call {
    int count = 0, word_count = 0;
    bool wants_gradient = false, is_looked_at = false; /* `is_looked_at`: Python knows all of its tensors to be plain */
    uint64_t words[MAX_WORDS];
    PyObject *inputs[MAX_ARGUMENTS];
    variable_list tensors;
    void put(uint64_t word) { words[word_count++] = word; }
    std::string key() const { return std::string((const char *)words, (size_t)word_count * sizeof *words); }
    py::object tuple() const { /* with copies of lists: who gets one may change it, and the caller later */
        py::object all = owned(PyTuple_New(count));
        for (int n = 0; n < count; n++) {
            py::object x = PyList_CheckExact(inputs[n]) ? owned(PySequence_List(inputs[n])) : borrowed(inputs[n]);
            PyTuple_SET_ITEM(all.ptr(), n, x.release().ptr());
        }
        return all;
    }
};

static bool put_inputs(const State &state, PyObject *args, PyObject *keywords, Call &call) {
    Py_ssize_t given = PyTuple_GET_SIZE(args), count = PyTuple_GET_SIZE(state.defaults.ptr()), position = 0;
    if (given > count || count > MAX_ARGUMENTS) return false;
    call.count = (int)count;
    for (Py_ssize_t n = 0; n < count; n++)
        call.inputs[n] = PyTuple_GET_ITEM(n < given ? args : state.defaults.ptr(), n);
    PyObject *name, *value;
    while (PyDict_Next(keywords, &position, &name, &value)) {
        PyObject *place = PyDict_GetItem(state.places.ptr(), name);
        if (place == nullptr || PyLong_AsLong(place) < given) return false;
        call.inputs[PyLong_AsLong(place)] = value;
    }
    return true;
}

/* What the dispatcher goes by in this thread; false where something is between that has no key. */
static bool put_thread(Call &call) {
    auto keys = c10::impl::tls_local_dispatch_key_set();
    call.put(keys.included_.raw_repr()), call.put(keys.excluded_.raw_repr());
    call.put((uint64_t)c10::get_default_dtype_as_scalartype());
    return !at::impl::PythonTorchFunctionTLS::stack_len() && !at::hasCallbacks() &&
           !torch::autograd::ForwardADLevel::try_get_by_idx(0);
}

static std::vector<uint64_t> plain; /* keys of tensors of which the dispatcher only finds the device, that were met */

static bool put_tensor(const State &state, PyObject *input, Call &call) {
    const Tensor &x = THPVariable_Unpack(input);
    uint64_t keys = x.key_set().raw_repr();
    if (std::find(plain.begin(), plain.end(), keys) == plain.end()) {
        if (!call.is_looked_at) return false;
        plain.push_back(keys);
    }
    if (!x.has_storage() || !x.numel()) return false;
    call.put(keys);
    call.wants_gradient |= x.requires_grad();
    call.tensors.push_back(x);
    if (!state.repeats) return true;
    uint64_t low = (uint64_t)(uintptr_t)x.mutable_data_ptr(), same = 0;
    if (low >> 33 == 0 /* LOW_ADDRESSES of calls.h */ || call.word_count + 2 * x.dim() + 8 > MAX_WORDS) return false;
    for (const Tensor &other : call.tensors) /* one array in two places; a function may ask whether it is one object */
        same = same << 2 | (uint64_t)other.is_same(x) << 1 |
               (uint64_t)(other.mutable_data_ptr() == x.mutable_data_ptr());
    call.put(same);
    call.put((uint64_t)x.scalar_type() | (uint64_t)x.dim() << 8 | (uint64_t)(low & (~low + 1) & 15) << 16 |
             (uint64_t)(uint16_t)x.device().index() << 32 | (uint64_t)x.device().type() << 48);
    for (int64_t extent : x.sizes()) call.put((uint64_t)extent);
    for (int64_t stride : x.strides()) call.put((uint64_t)stride);
    return true;
}

static bool put_int(const State &state, PyObject *input, Call &call) {
    int overflow = 0;
    if (!PyLong_CheckExact(input) || call.word_count + 8 > MAX_WORDS) return false;
    uint64_t value = (uint64_t)PyLong_AsLongLongAndOverflow(input, &overflow);
    if (state.repeats) call.put(value);
    return !overflow;
}

static bool put_input(const State &state, PyObject *input, Call &call) {
    if (call.word_count + 8 > MAX_WORDS) return false;
    call.put((uint64_t)(uintptr_t)Py_TYPE(input));
    if (THPVariable_CheckExact(input)) return put_tensor(state, input, call);
    if (PyLong_CheckExact(input)) return put_int(state, input, call);
    if (PyList_CheckExact(input) || PyTuple_CheckExact(input)) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(input);
        call.put((uint64_t)(state.repeats ? count : 0));
        for (Py_ssize_t n = 0; n < count; n++)
            if (!put_int(state, PySequence_Fast_GET_ITEM(input, n), call)) return false;
    } else if (state.repeats && PyFloat_CheckExact(input)) {
        double real = PyFloat_AS_DOUBLE(input);
        memcpy(&call.words[call.word_count++], &real, sizeof real);
    } else if (state.repeats) call.put((uint64_t)(uintptr_t)input);
    return true;
}

/* Read a call; false where it is not one of those that are known here. */
static bool read(const State &state, PyObject *args, PyObject *keywords, Call &call) {
    if (!put_inputs(state, args, keywords, call) || !put_thread(call)) return false;
    for (int n = 0; n < call.count; n++)
        if (!put_input(state, call.inputs[n], call)) return false;
    call.wants_gradient = call.wants_gradient && c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled();
    call.put(call.wants_gradient);
    return true;
}

static std::shared_ptr<Kind> met(State &state, const Call &call) {
    size_t bytes = (size_t)call.word_count * sizeof *call.words;
    if (state.last.size() == bytes && memcmp(state.last.data(), call.words, bytes) == 0) return state.last_kind;
    auto found = state.kinds.find(call.key());
    if (found == state.kinds.end()) return nullptr;
    state.last = found->first;
    return state.last_kind = found->second;
}

/* Take what a watched call did: (made, results, launches); None where it cannot be repeated, False where it was not
   watched. */
static void take_plan(Kind &kind, py::handle given, bool is_tuple) {
    kind.is_new = given.ptr() == Py_False;
    if (given.is_none() || kind.is_new) return;
    auto parts = py::reinterpret_borrow<py::tuple>(given);
    auto plan = std::make_shared<Plan>();
    plan->is_tuple = is_tuple;
    for (py::handle each : parts[0]) {
        const Tensor &x = THPVariable_Unpack(each.ptr());
        plan->made.push_back({x.sizes().vec(), x.strides().vec(), x.options()});
    }
    for (py::handle each : parts[1]) plan->results.push_back(each.cast<size_t>());
    for (py::handle each : parts[2]) {
        auto launch = py::reinterpret_borrow<py::tuple>(each);
        plan->launches.push_back({launch[0], launch[2], launch[1].cast<std::vector<int>>()});
    }
    if (!plan->launches.empty()) kind.plan = plan;
}

/* Launch once more with these pointers; false where that has to be Python's. */
static bool launch_again(const Launch &launch, const std::vector<uint64_t> &pointers) {
    Py_ssize_t count = (Py_ssize_t)launch.places.size();
    py::object values = owned(PyTuple_New(count));
    for (Py_ssize_t n = 0; n < count; n++) {
        int place = launch.places[n];
        PyObject *value = place < 0 ? Py_NewRef(PyTuple_GET_ITEM(launch.constants.ptr(), n))
                                    : PyLong_FromUnsignedLongLong(pointers[place]);
        if (value == nullptr) fail();
        PyTuple_SET_ITEM(values.ptr(), n, value);
    }
    return owned(PyObject_CallOneArg(launch.again.ptr(), values.ptr())).ptr() == Py_True;
}

/* Do what the first call of a kind did. Results are new memory, so what was launched of a call that fails is lost. */
static bool repeat(const Plan &plan, const Call &call, variable_list &results) {
    std::vector<uint64_t> pointers;
    variable_list made;
    pointers.reserve(call.tensors.size() + plan.made.size()), made.reserve(plan.made.size());
    for (const Tensor &x : call.tensors) pointers.push_back((uint64_t)(uintptr_t)x.mutable_data_ptr());
    {
        Unlocked none;
        for (const Made &each : plan.made) made.push_back(at::empty_strided(each.sizes, each.strides, each.options));
    }
    for (const Tensor &x : made) {
        pointers.push_back((uint64_t)(uintptr_t)x.mutable_data_ptr());
        if (!pointers.back() || pointers.back() & 15) return false;
    }
    for (const Launch &each : plan.launches)
        if (!launch_again(each, pointers)) return false;
    for (size_t place : plan.results) results.push_back(made[place]);
    return true;
}

/* Put the tensors of what a function returned into `results`; false for what a call like this must not return.

   A view, such as a transposed result, becomes a tensor of its own, as those of PyTorch's operators are: autograd would
   refuse to write to a view that was made without gradients. */
static bool take_results(const State &state, const Call &call, py::handle object, variable_list &results,
                         int depth = 0) {
    bool is_fixed = state.count >= 0;
    if (PyTuple_CheckExact(object.ptr()) || (!is_fixed && PyList_CheckExact(object.ptr()))) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(object.ptr());
        if (is_fixed && (depth || count < 2 || count != state.count)) return false;
        for (Py_ssize_t n = 0; n < count; n++)
            if (!take_results(state, call, PySequence_Fast_GET_ITEM(object.ptr(), n), results, depth + 1)) return false;
        return true;
    }
    if (is_fixed && !depth && state.count != (object.is_none() ? std::min(state.count, 1) : 1)) return false;
    if (object.is_none()) return !call.wants_gradient;
    if (!THPVariable_CheckExact(object.ptr())) return false;
    Tensor x = THPVariable_Unpack(object.ptr());
    if (x.requires_grad()) return false;
    if (x.is_view()) x.unsafeGetTensorImpl()->set_autograd_meta(nullptr);
    if (state.checks) { /* of our own operators none returns memory that another one has */
        if (!x.has_storage()) return false;
        for (const variable_list *others : {&call.tensors, (const variable_list *)&results})
            for (const Tensor &other : *others)
                if (other.is_alias_of(x)) return false;
    }
    results.push_back(std::move(x));
    return true;
}

/* Compute a call. `object` is what Python's function returned, or nothing: then results are a tuple if `is_tuple`. */
static bool compute(const State &state, Kind &kind, const Call &call, variable_list &results, py::object &object,
                    bool &is_tuple) {
    c10::AutoGradMode none(false); /* gradients are the operator's, not the kernels' */
    bool is_observed = PyDict_GET_SIZE(state.observers.ptr()) != 0;
    auto plan = kind.plan;
    if (plan != nullptr && !is_observed) {
        is_tuple = plan->is_tuple;
        if (repeat(*plan, call, results)) return true;
        results.clear(), kind.plan.reset();
        kind.is_new = ++kind.failures < MAX_FAILURES;
    }
    if (kind.is_new && state.repeats && !is_observed) {
        py::object both = owned(PyObject_Call(state.watch.ptr(), call.tuple().ptr(), nullptr));
        object = both[py::int_(0)];
        take_plan(kind, both[py::int_(1)], PyTuple_CheckExact(object.ptr()));
    } else object = owned(PyObject_Call(state.function.ptr(), call.tuple().ptr(), nullptr));
    if (state.count > 1 && (PyTuple_Check(object.ptr()) || PyList_Check(object.ptr())))
        object = owned(PySequence_Tuple(object.ptr()));
    is_tuple = !THPVariable_CheckExact(object.ptr());
    return take_results(state, call, object, results);
}

/* ---- gradients ----------------------------------------------------------------------------------------------- */

struct Refused {}; /* a call that is Python's */

static py::object tuple_of(const variable_list &tensors) {
    py::object all = owned(PyTuple_New(tensors.size()));
    for (size_t n = 0; n < tensors.size(); n++)
        PyTuple_SET_ITEM(all.ptr(), n, owned(THPVariable_Wrap(tensors[n])).release().ptr());
    return all;
}

/* Calls of a kind with the same inputs share it. */
static const Tensor &kept_of(const State &state, Kind &kind, const Call &call) {
    bool is_same = kind.kept.defined();
    for (int n = 0; n < call.count && is_same && !state.repeats; n++) {
        PyObject *input = PyTuple_GET_ITEM(Kept::of(kind.kept).inputs.ptr(), n); /* of a list it is a copy */
        is_same = input == call.inputs[n] || input == Py_Ellipsis;
    }
    if (is_same) return kind.kept;
    py::object inputs = call.tuple();
    for (int n = 0; n < call.count; n++)
        if (THPVariable_CheckExact(call.inputs[n])) PyTuple_SetItem(inputs.ptr(), n, Py_NewRef(Py_Ellipsis));
    auto kept = new Kept;
    kept->finish = state.finish, kept->inputs = inputs;
    return kind.kept = at::from_blob(kept, {1}, Kept::drop, at::kLong);
}

struct Gradient : torch::autograd::Function<Gradient> {
    static variable_list forward(AutogradContext *context, at::TensorList, State *state, Kind *kind, Call *call) {
        variable_list results, saved;
        py::object object;
        bool is_tuple;
        if (!compute(*state, *kind, *call, results, object, is_tuple)) throw Refused();
        if (state->count == 1 && is_tuple) throw Refused();
        for (int place : state->saved)
            if (place == -1) saved.insert(saved.end(), results.begin(), results.end());
            else if (place < 0) saved.push_back(results[-2 - place]);
            else if (PyObject *input = call->inputs[place]; THPVariable_CheckExact(input))
                saved.push_back(THPVariable_Unpack(input));
        if (!saved.empty()) context->save_for_backward(std::move(saved));
        if (state->may_be_none) context->set_materialize_grads(false);
        context->saved_data["kept"] = kept_of(*state, *kind, *call);
        return results;
    }

    static variable_list backward(AutogradContext *context, variable_list gradients) {
        variable_list saved = context->get_saved_variables(), answer;
        py::gil_scoped_acquire lock;
        const Kept &kept = Kept::of(context->saved_data["kept"].toTensor());
        py::list needs;
        for (py::handle input : kept.inputs)
            if (input.ptr() == Py_Ellipsis) needs.append(context->needs_input_grad(needs.size()));
        py::tuple given = py::make_tuple(kept.inputs, tuple_of(saved), needs, tuple_of(gradients));
        py::object found = owned(PyObject_CallObject(kept.finish.ptr(), given.ptr()));
        for (py::handle each : found) {
            bool is_tensor = THPVariable_Check(each.ptr());
            TORCH_CHECK(is_tensor || each.is_none(), "expected Variable or None (got ",
                        Py_TYPE(each.ptr())->tp_name, ")");
            answer.push_back(is_tensor ? THPVariable_Unpack(each.ptr()) : Tensor());
        }
        answer.resize(needs.size() + 3); /* forward's last parameters have none */
        return answer;
    }
};

/* ---- what is called ------------------------------------------------------------------------------------------ */

static PyObject *run(State &state, Kind &kind, Call &call) {
    variable_list results;
    py::object object;
    bool is_tuple = state.count != 1;
    if (call.wants_gradient) {
        at::TensorList tensors = call.tensors;
        try {
            results = Gradient::apply(tensors, &state, &kind, &call);
        } catch (const Refused &) {
            return Py_NewRef(Py_NotImplemented);
        }
    } else if (!compute(state, kind, call, results, object, is_tuple)) return Py_NewRef(Py_NotImplemented);
    if (object) return object.release().ptr();
    if (!is_tuple) return THPVariable_Wrap(std::move(results[0]));
    return tuple_of(results).release().ptr();
}

static State &state_of(PyObject *self) { return *(State *)PyCapsule_GetPointer(self, nullptr); }

/* call(args, keywords) */
static PyObject *call_met(PyObject *self, PyObject *const *args, Py_ssize_t) {
    HANDLE_TH_ERRORS
    State &state = state_of(self);
    Call call;
    if (state.is_stale || !read(state, args[0], args[1], call)) return Py_NewRef(Py_NotImplemented);
    auto kind = met(state, call);
    if (kind == nullptr) return Py_NewRef(Py_NotImplemented);
    for (const Guard &guard : state.guards) state.is_stale |= !guard.holds();
    return state.is_stale ? Py_NewRef(Py_NotImplemented) : run(state, *kind, call);
    END_HANDLE_TH_ERRORS
}

/* add(args, keywords): make calls like this one from here on, which Python has looked at; False where that cannot be,
   None where a variable has changed that the function reads. */
static PyObject *add_kind(PyObject *self, PyObject *const *args, Py_ssize_t) {
    HANDLE_TH_ERRORS
    State &state = state_of(self);
    if (state.is_stale) Py_RETURN_NONE;
    if (state.kinds.size() >= MAX_KINDS) {
        state.kinds.clear(), state.last.clear(), state.last_kind.reset();
        state.repeats = false, state.guards.clear();
    }
    Call call;
    call.is_looked_at = true;
    if (!read(state, args[0], args[1], call)) Py_RETURN_FALSE;
    auto kind = std::make_shared<Kind>();
    for (int n = 0; n < call.count; n++) { /* None, True and False stay where they are */
        PyObject *input = call.inputs[n];
        if (PyUnicode_CheckExact(input) || THPDtype_Check(input)) kind->known.push_back(borrowed(input));
    }
    state.kinds[call.key()] = kind;
    Py_RETURN_TRUE;
    END_HANDLE_TH_ERRORS
}

static PyMethodDef call_def = {"call", (PyCFunction)(void *)call_met, METH_FASTCALL},
                   add_def = {"add", (PyCFunction)(void *)add_kind, METH_FASTCALL};

static void drop(PyObject *capsule) { delete &state_of(capsule); }

/* calls(function, watch, finish, places, defaults, observers, saved, flags, guards, count) returns call and add. */
static PyObject *calls(PyObject *, PyObject *args) {
    HANDLE_TH_ERRORS
    auto given = py::reinterpret_borrow<py::tuple>(args);
    int flags = given[7].cast<int>();
    auto state = new State{given[0], given[1], given[2], given[3], given[4], given[5], bool(flags & 1), bool(flags & 2),
                           bool(flags & 4), given[9].cast<int>()};
    py::object capsule = owned(PyCapsule_New(state, nullptr, drop));
    state->saved = given[6].cast<std::vector<int>>();
    for (py::handle each : given[8]) {
        auto guard = py::reinterpret_borrow<py::tuple>(each);
        state->guards.push_back({guard[0], guard[1], guard[2]});
    }
    py::object call = owned(PyCFunction_New(&call_def, capsule.ptr()));
    return py::make_tuple(call, owned(PyCFunction_New(&add_def, capsule.ptr()))).release().ptr();
    END_HANDLE_TH_ERRORS
}

} /* namespace tilewright */

static PyMethodDef functions[] = {{"calls", tilewright::calls, METH_VARARGS}, {}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tilewright_operators", nullptr, -1, functions};

PyMODINIT_FUNC PyInit_tilewright_operators() { return PyModule_Create(&definition); }

/* Caches for attributes and methods in compiled modules, one for each place that looks one up.

   Cython calls the type's general lookup each time: it searches the classes of the type, then calls
   the descriptor that it found. A cache keeps what the last lookup found, for one type. As in
   CPython's own adaptive interpreter, it is valid while the type has the same version tag: each
   change of a type or its bases gives it a new tag, and no tag is used twice. References to what
   was found are borrowed: the type has them while its version is the same.

   `hatch_build.py` includes this file twice in the C text of each module: before the code of the
   module, which then uses the caches, and after it, because Cython defines its own functions there. */
#ifndef ATTRIBUTE_CACHES
#define ATTRIBUTE_CACHES
#include <structmember.h>

typedef struct {
    PyTypeObject *type;
    unsigned int version;
    Py_ssize_t offset; /* of the slot in the object; 0 if the attribute is in none */
    getter get; /* computes the attribute, if it is in no slot, */
    void *closure; /* with this argument */
} attribute_cache;

typedef struct {
    PyTypeObject *type;
    unsigned int version;
    PyObject *function;
} method_cache;

static CYTHON_INLINE int
is_cached(PyTypeObject *type, const attribute_cache *cache)
{
    return type == cache->type && type->tp_version_tag == cache->version;
}

/* Return the offset of the slot behind a descriptor, or 0: for `__slots__` and the fields of
   msgspec's structs. */
static Py_ssize_t
offset_of_slot(PyTypeObject *type, PyObject *found)
{
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)
        && PyType_IsSubtype(type, PyDescr_TYPE(found))) { /* not one of an unrelated class */
        PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == T_OBJECT_EX && !member->flags) {
            return member->offset;
        }
    }
    return 0;
}

/* Return the offset of a named tuple's field behind its descriptor, or 0. */
static Py_ssize_t
offset_of_field(PyObject *tuple, PyObject *found)
{
    Py_ssize_t index, offset = 0;
    PyObject *parts, *document;
    if (!PyTuple_Check(tuple) || strcmp(Py_TYPE(found)->tp_name, "_collections._tuplegetter")) {
        return 0;
    }
    parts = PyObject_CallMethod(found, "__reduce__", NULL); /* its type, index and documentation */
    if (parts && PyArg_ParseTuple(PyTuple_GET_ITEM(parts, 1), "nO", &index, &document)
        && index < PyTuple_GET_SIZE(tuple)) {
        offset = offsetof(PyTupleObject, ob_item) + index * sizeof(PyObject *);
    }
    Py_XDECREF(parts);
    PyErr_Clear();
    return offset;
}

static PyObject *
get_property(PyObject *object, void *closure)
{
    PyObject *function = (PyObject *)closure, *result;
    Py_INCREF(function); /* the call may change the type */
    result = PyObject_Vectorcall(function, &object, 1, NULL);
    Py_DECREF(function);
    return result;
}

static PyObject *
get_constant(PyObject *Py_UNUSED(object), void *closure)
{
    return Py_NewRef((PyObject *)closure);
}

/* Find how to get an attribute that is in no slot: by the descriptor of a compiled class, by a
   property, or from the class, if instances have no attributes but their slots. */
static void
find_getter(PyTypeObject *type, PyObject *found, attribute_cache *cache)
{
    if (Py_IS_TYPE(found, &PyGetSetDescr_Type)) {
        PyGetSetDef *computed = ((PyGetSetDescrObject *)found)->d_getset;
        if (PyType_IsSubtype(type, PyDescr_TYPE(found))) {
            cache->get = computed->get;
            cache->closure = computed->closure;
        }
    } else if (Py_IS_TYPE(found, &PyProperty_Type)) {
        PyObject *function = PyObject_GetAttrString(found, "fget");
        if (function && function != Py_None) {
            cache->get = get_property;
            cache->closure = function;
        }
        Py_XDECREF(function); /* the property has a reference */
        PyErr_Clear();
    } else if (!type->tp_dictoffset && !Py_TYPE(found)->tp_descr_get) {
        cache->get = get_constant;
        cache->closure = found;
    }
}

static __attribute__((noinline)) PyObject *
find_attribute(PyObject *object, PyObject *name, attribute_cache *cache)
{
    PyTypeObject *type = Py_TYPE(object);
    if (cache->get && is_cached(type, cache)) {
        return cache->get(object, cache->closure);
    }
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = _PyType_Lookup(type, name); /* gives the type a version tag */
        if (found && PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
            attribute_cache here = {type, type->tp_version_tag, offset_of_slot(type, found)};
            if (!here.offset) {
                here.offset = offset_of_field(object, found);
                find_getter(type, found, &here);
            }
            if (here.offset || here.get) {
                *cache = here;
            }
        }
    }
    return PyObject_GetAttr(object, name);
}

static CYTHON_INLINE PyObject *
cached_attribute(PyObject *object, PyObject *name, attribute_cache *cache)
{
    if (likely(is_cached(Py_TYPE(object), cache) && cache->offset)) {
        PyObject *value = *(PyObject **)((char *)object + cache->offset);
        if (likely(value)) {
            Py_INCREF(value);
            return value;
        } /* an empty slot raises AttributeError below */
    }
    return find_attribute(object, name, cache);
}

/* Return how msgspec's structs that are not frozen set an attribute. If the struct was not tracked
   by the garbage collector and the value may need it, the struct is tracked from then on. */
static setattrofunc
setter_of_structs(void)
{
    static setattrofunc found;
    if (!found) {
        PyObject *module = PyImport_ImportModule("msgspec");
        PyObject *base = module ? PyObject_GetAttrString(module, "Struct") : NULL;
        found = base ? ((PyTypeObject *)base)->tp_setattro : PyObject_GenericSetAttr;
        Py_XDECREF(base);
        Py_XDECREF(module);
        PyErr_Clear();
    }
    return found;
}

static __attribute__((noinline)) int
find_slot(PyObject *object, PyObject *name, PyObject *value, attribute_cache *cache)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_setattro == setter_of_structs()) {
        PyObject *found = _PyType_Lookup(type, name);
        if (found && PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
            cache->offset = offset_of_slot(type, found);
            cache->type = cache->offset ? type : NULL;
            cache->version = type->tp_version_tag;
        }
    }
    return PyObject_SetAttr(object, name, value);
}

static CYTHON_INLINE int
set_cached_attribute(PyObject *object, PyObject *name, PyObject *value, attribute_cache *cache)
{
    PyTypeObject *type = Py_TYPE(object);
    if (likely(is_cached(type, cache)) && likely(value)
        && (!PyType_IS_GC(type) || PyObject_GC_IsTracked(object))) {
        PyObject **slot = (PyObject **)((char *)object + cache->offset), *before = *slot;
        Py_INCREF(value);
        *slot = value;
        Py_XDECREF(before);
        return 0;
    }
    return find_slot(object, name, value, cache);
}

static __attribute__((noinline)) PyObject *
find_method(PyObject *name, PyObject *const *arguments, size_t count, method_cache *cache)
{
    PyTypeObject *type = Py_TYPE(arguments[0]);
    if (type->tp_getattro == PyObject_GenericGetAttr && !type->tp_dictoffset) {
        PyObject *found = _PyType_Lookup(type, name);
        if (found && PyType_HasFeature(Py_TYPE(found), Py_TPFLAGS_METHOD_DESCRIPTOR)
            && PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
            cache->type = type;
            cache->version = type->tp_version_tag;
            cache->function = found;
        }
    }
    return PyObject_VectorcallMethod(name, arguments, count, NULL);
}

static CYTHON_INLINE PyObject *
call_cached_method(PyObject *name, PyObject *const *arguments, size_t count, method_cache *cache)
{
    PyTypeObject *type = Py_TYPE(arguments[0]);
    if (likely(type == cache->type) && likely(type->tp_version_tag == cache->version)) {
        PyObject *function = cache->function, *result;
        Py_INCREF(function); /* the call may change the type */
        result = PyObject_Vectorcall(
            function, arguments, count & ~PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_DECREF(function);
        return result;
    }
    return find_method(name, arguments, count, cache);
}

#undef __Pyx_PyObject_SetAttrStr
#undef __Pyx_PyObject_FastCallMethod
#define __Pyx_PyObject_GetAttrStr(object, name)                   \
    (__extension__({                                              \
        static attribute_cache cache_here;                        \
        cached_attribute((object), (name), &cache_here);          \
    }))
#define __Pyx_PyObject_SetAttrStr(object, name, value)            \
    (__extension__({                                              \
        static attribute_cache cache_here;                            \
        set_cached_attribute((object), (name), (value), &cache_here); \
    }))
#define __Pyx_PyObject_FastCallMethod(name, arguments, count)     \
    (__extension__({                                              \
        static method_cache cache_here;                           \
        call_cached_method((name), (arguments), (count), &cache_here); \
    }))
#else
#undef __Pyx_PyObject_GetAttrStr
#undef __Pyx_PyObject_SetAttrStr
#undef __Pyx_PyObject_FastCallMethod
#define __Pyx_PyObject_FastCallMethod(name, arguments, count) \
    PyObject_VectorcallMethod(name, arguments, count, NULL)
#endif

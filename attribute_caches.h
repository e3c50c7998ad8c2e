/* Caches for attributes and methods in compiled modules, one for each place that looks one up.

   Cython calls the type's general lookup each time: it searches the classes of the type, then calls
   the descriptor that it found. A cache keeps what the last lookup found, for one type. As in
   CPython's own adaptive interpreter, it is valid while the type has the same version tag: each
   change of a type or its bases gives it a new tag, and no tag is used twice.

   `hatch_build.py` includes this file twice in the C text of each module: before the code of the
   module, which then uses the caches, and after it, because Cython defines its own functions there. */
#ifndef ATTRIBUTE_CACHES
#define ATTRIBUTE_CACHES
#include <structmember.h>

typedef struct {
    PyTypeObject *type;
    unsigned int version;
    Py_ssize_t offset; /* of the slot in the object */
} attribute_cache;

typedef struct {
    PyTypeObject *type;
    unsigned int version;
    PyObject *function; /* borrowed: the type has a reference while its version is the same */
} method_cache;

static __attribute__((noinline)) PyObject *
find_attribute(PyObject *object, PyObject *name, attribute_cache *cache)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = _PyType_Lookup(type, name); /* gives the type a version tag */
        if (found && Py_IS_TYPE(found, &PyMemberDescr_Type)
            && PyType_IsSubtype(type, PyDescr_TYPE(found)) /* not one of an unrelated class */
            && PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
            PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
            if (member->type == T_OBJECT_EX && !(member->flags & ~READONLY)) {
                cache->type = type;
                cache->version = type->tp_version_tag;
                cache->offset = member->offset;
            }
        }
    }
    return PyObject_GetAttr(object, name);
}

static CYTHON_INLINE PyObject *
cached_attribute(PyObject *object, PyObject *name, attribute_cache *cache)
{
    PyTypeObject *type = Py_TYPE(object);
    if (likely(type == cache->type) && likely(type->tp_version_tag == cache->version)) {
        PyObject *value = *(PyObject **)((char *)object + cache->offset);
        if (likely(value)) {
            Py_INCREF(value);
            return value;
        } /* an empty slot raises AttributeError below */
    }
    return find_attribute(object, name, cache);
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

#undef __Pyx_PyObject_FastCallMethod
#define __Pyx_PyObject_GetAttrStr(object, name)                   \
    (__extension__({                                              \
        static attribute_cache cache_here;                        \
        cached_attribute((object), (name), &cache_here);          \
    }))
#define __Pyx_PyObject_FastCallMethod(name, arguments, count)     \
    (__extension__({                                              \
        static method_cache cache_here;                           \
        call_cached_method((name), (arguments), (count), &cache_here); \
    }))
#else
#undef __Pyx_PyObject_GetAttrStr
#undef __Pyx_PyObject_FastCallMethod
#define __Pyx_PyObject_FastCallMethod(name, arguments, count) \
    PyObject_VectorcallMethod(name, arguments, count, NULL)
#endif

/* What is used of CPython, of builds of 64 bits with one lock.
 *
 * Its own headers are often not installed, so all is declared here by hand: what the
 * stable ABI has, and what since some version or till another is there or not.
 */
#ifndef SAPWOOD_CPYTHON_H
#define SAPWOOD_CPYTHON_H

#include <stddef.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define OLD __attribute__((weak)) /* there till 3.14 at least */
#define NEW __attribute__((weak)) /* since 3.12 or 3.13 */

typedef ptrdiff_t Size;

typedef struct object {
  Size references; /* never touched from here */
  const struct object *type;
} Object;

typedef struct {
  const char *name;
  Object *(*call)(Object *, Object *);
  int flags;
  const char *doc;
} Method;

enum { KEYWORDS = 2, NO_ARGUMENTS = 4, ARGUMENTS = 0x80, EQUAL = 2 };
enum { GETATTRO = 58 }; /* which slot of a type gets attributes */

/* What happens to a dict that is watched. */
enum event { ADDED, MODIFIED, DELETED, CLONED, CLEARED, DEALLOCATED };
typedef int (*Watcher)(enum event, Object *, Object *, Object *);

extern Object _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern Object PyCFunction_Type, PyDict_Type, PyFunction_Type, PyList_Type;
extern Object PyTuple_Type, PyUnicode_Type;
extern Object _PyWeakref_RefType;
extern Object *PyExc_AttributeError, *PyExc_LookupError, *PyExc_RuntimeError;
extern Object *PyExc_Exception, *PyExc_TypeError, *PyExc_ValueError;

extern void Py_IncRef(Object *);
extern void Py_DecRef(Object *);
extern Object *PyObject_CallNoArgs(Object *);
extern Object *PyObject_CallFunctionObjArgs(Object *, ...);
extern Object *PyObject_CallOneArg(Object *, Object *);
extern Object *PyObject_GetAttr(Object *, Object *);
extern Object *PyObject_GetItem(Object *, Object *);
extern Object *PyObject_GetIter(Object *);
extern Size PyObject_Hash(Object *);
extern int PyObject_RichCompareBool(Object *, Object *, int);
extern int PyObject_SetAttr(Object *, Object *, Object *);
extern Object *PyObject_Vectorcall(Object *, Object *const *, size_t, Object *);
extern Object *PyNumber_And(Object *, Object *);
extern int PyObject_IsTrue(Object *);
extern Size PyObject_Size(Object *);
extern Object **_PyObject_GetDictPtr(Object *) OLD;
extern int PyDict_AddWatcher(Watcher) NEW;
extern int PyDict_Contains(Object *, Object *);
extern Object *PyDict_GetItemWithError(Object *, Object *);
extern int PyDict_Next(Object *, Size *, Object **, Object **);
extern Size PyDict_Size(Object *);
extern int PyDict_Unwatch(int, Object *) NEW;
extern int PyDict_Watch(int, Object *) NEW;
extern Object *PyFunction_GetCode(Object *);
extern Object *PyFunction_GetDefaults(Object *);
extern Object *PyFunction_GetKwDefaults(Object *);
extern Object *PyIter_Next(Object *);
extern Object *PyList_GetItem(Object *, Size);
extern Object *PyList_New(Size);
extern int PyList_SetItem(Object *, Size, Object *);
extern Object *PyTuple_GetItem(Object *, Size);
extern void *PyType_GetSlot(const Object *, int);
extern Object *PyTuple_Pack(Size, ...);
extern Size PyTuple_Size(Object *);
extern int PyUnicode_CompareWithASCIIString(Object *, const char *);
extern long PyLong_AsLong(Object *);
extern unsigned long long PyLong_AsUnsignedLongLong(Object *);
extern Object *PyLong_FromLongLong(long long);
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);
extern Object *PyWeakref_NewRef(Object *, Object *);
extern Object *PyCapsule_New(void *, const char *, void (*)(Object *));
extern void *PyCapsule_GetPointer(Object *, const char *);
extern Object *PyCFunction_NewEx(Method *, Object *, Object *);
extern void (*PyCFunction_GetFunction(Object *))(void);
extern Object *PyCFunction_GetSelf(Object *);
extern int PyContextVar_Get(Object *, Object *, Object **);
extern Object *PyErr_NoMemory(void);
extern Object *PyWeakref_GetObject(Object *) OLD;
extern int PyWeakref_GetRef(Object *, Object **) NEW;
extern Object *PyErr_Occurred(void);
extern int PyErr_ExceptionMatches(Object *);
extern void PyErr_SetString(Object *, const char *);
extern void PyErr_Clear(void);
extern void PyErr_Fetch(Object **, Object **, Object **);
extern void PyErr_Restore(Object *, Object *, Object *);

static inline int is_none(const Object *value) { return value == &_Py_NoneStruct; }

#endif

/* CPython, with what differs between its versions; all is done under its one lock. */
#ifndef SAPWOOD_NATIVE_H
#define SAPWOOD_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

#ifdef Py_GIL_DISABLED
#error "what is looked at here is protected by the interpreter's one lock"
#endif

static inline PyObject *item(PyObject *tuple, Py_ssize_t k) {
  return PyTuple_GET_ITEM(tuple, k);
}

/* The target of a weak reference, owned; NULL where it is gone. */
static inline PyObject *target_of(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *target = NULL;
  PyWeakref_GetRef(reference, &target);
  return target;
#else
  PyObject *target = PyWeakref_GetObject(reference);
  return target == Py_None ? NULL : Py_XNewRef(target);
#endif
}

/* Whether a weak reference is to an object; no code runs before that is known. */
static inline int refers_to(PyObject *reference, const PyObject *value) {
  PyObject *target = target_of(reference);
  int same = target == value;
  Py_XDECREF(target);
  return same;
}

extern PyTypeObject guards_type, probe_type, replay_type;
extern PyTypeObject *page_type, *recordings_type, *epoch_type, *guard_state_type;
extern PyTypeObject *replay_state_type, *replays_type, *skips_type, *call_type;

PyObject *compile_guards(PyObject *module, PyObject *args);
PyObject *compile_replay(PyObject *module, PyObject *args);
PyObject *look_by_attributes(PyObject *module, PyObject *args);
PyObject *make_probe(PyObject *module, PyObject *args);
PyObject *take_calls(PyObject *module, PyObject *args);
PyObject *watch_nothing(PyObject *module, PyObject *unused);

#endif

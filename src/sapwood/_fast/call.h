/* A graphed function that is called: from the interpreter straight to its fast replays,
 * or to the plain function where calls are skipped and not looked at.
 *
 * Whatever is neither is Python's, as it ever was.
 */
#ifndef SAPWOOD_CALL_H
#define SAPWOOD_CALL_H

#include "state.h"

/* Two variables of the context, what is called where no fast replay fits, and what
 * calls the class's `__call__`. */
static struct {
  PyObject *session, *disabled, *missed;
  ternaryfunc plain;
} calls;

static PyObject *replayed(struct replay *r, PyObject *const *call, Py_ssize_t count);

static int is_now(PyObject *variable, const PyObject *value) {
  PyObject *found = NULL;
  if (PyContextVar_Get(variable, NULL, &found) < 0)
    PyErr_Clear(); /* then Python says so */
  Py_XDECREF(found);
  return found == value;
}

/* The replays in C of a function, not owned; NULL: it has none. No code runs. */
static PyObject *players_of(PyObject *self) {
  PyObject *replays = ((struct call_state *)self)->fast_replays, *players = NULL;
  if (replays && PyObject_TypeCheck(replays, replays_type))
    players = ((struct replays_state *)replays)->players;
  return players && PyTuple_CheckExact(players) && PyTuple_GET_SIZE(players) ? players
                                                                             : NULL;
}

/* What tells how many calls are left that are not looked at, not owned; NULL: none is.
 * No code runs. */
static struct skips_state *skips_of(PyObject *self) {
  PyObject *replays = ((struct call_state *)self)->fast_replays, *skips = NULL;
  if (replays && PyObject_TypeCheck(replays, replays_type))
    skips = ((struct replays_state *)replays)->skips;
  if (!skips || !PyObject_TypeCheck(skips, skips_type) ||
      ((struct skips_state *)skips)->left <= 0)
    return NULL;
  return (struct skips_state *)skips;
}

/* Run the plain function, and count that. */
static PyObject *passed(struct skips_state *skips, PyObject *tuple, PyObject *named) {
  PyObject *target = Py_XNewRef(skips->target), *function, *result;
  if (!target)
    return PyErr_Format(PyExc_SystemError, "no plain function is known");
  skips->left--, skips->passed++;
  function = PyObject_CallNoArgs(target); /* any code may run, and the skips go */
  result = function ? PyObject_Call(function, tuple, named) : NULL;
  Py_XDECREF(function);
  Py_DECREF(target);
  return result;
}

/* Whether a function is still on the runtime that it was on; false with an error. */
static int is_on_its_runtime(PyObject *self) {
  struct call_state *state = (struct call_state *)self;
  PyObject *runtime = state->runtime ? PyObject_CallNoArgs(state->runtime) : NULL;
  Py_XDECREF(runtime);
  return runtime && runtime == state->on;
}

/* Call what decides a call that no fast replay fits: `missed(self, *arguments)`. */
static PyObject *missed(PyObject *self, PyObject *tuple) {
  PyObject *first = PyTuple_Pack(1, self), *all, *result;
  all = first ? PySequence_Concat(first, tuple) : NULL;
  result = all ? PyObject_CallObject(calls.missed, all) : NULL;
  Py_XDECREF(first);
  Py_XDECREF(all);
  return result;
}

static PyObject *called(PyObject *self, PyObject *tuple, PyObject *named) {
  PyObject *players, *shown = NULL;
  struct skips_state *skips;
  int tried = 0;
  if (!(players_of(self) || skips_of(self)) || !is_now(calls.session, Py_None) ||
      !is_now(calls.disabled, Py_False) || !is_on_its_runtime(self))
    return PyErr_Occurred() ? NULL : calls.plain(self, tuple, named);
  players = Py_XNewRef(players_of(self)); /* any code may have run */
  if (!players && (skips = skips_of(self)))
    return passed(skips, tuple, named);
  if (!players || (named && PyDict_GET_SIZE(named))) {
    Py_XDECREF(players);
    return calls.plain(self, tuple, named);
  }
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(players) && !shown; k++) {
    PyObject *player = item(players, k);
    if (PyErr_Occurred() || !Py_IS_TYPE(player, &replay_type))
      continue;
    tried = 1;
    shown = replayed((struct replay *)player, PySequence_Fast_ITEMS(tuple),
                     PyTuple_GET_SIZE(tuple));
  }
  Py_DECREF(players);
  if (shown || PyErr_Occurred())
    return shown;
  return tried ? missed(self, tuple) : calls.plain(self, tuple, named);
}

/* take_calls(class, session, disabled, missed): have a class that defines `__call__`,
 * or derives from one that was taken, called here. Its `__call__` stays what it is, for
 * whoever traces a program reads that: so the class cannot inherit this. Whoever puts
 * another in its place has that called, as CPython sets the slot anew then. False for a
 * class of other variables, of modules that were imported anew: those are Python's. */
PyObject *take_calls(PyObject *module, PyObject *args) {
  PyObject *class, *session, *disabled, *missed, *own;
  PyTypeObject *type;
  (void)module;
  if (!PyArg_ParseTuple(args, "O!OOO", &PyType_Type, &class, &session, &disabled,
                        &missed))
    return NULL;
  type = (PyTypeObject *)class;
  if (!PyType_IsSubtype(type, call_type)) {
    PyErr_SetString(PyExc_TypeError, "what is called in C derives from CallState");
    return NULL;
  }
  if (calls.session && calls.session != session)
    Py_RETURN_FALSE;
  /* As it was defined, and not as another library has taken it, in tests. */
  own = PyDict_GetItemString(type->tp_dict, "__call__");
  Py_XINCREF(own);
  if (own && PyObject_SetAttrString(class, "__call__", own) < 0) {
    Py_DECREF(own);
    return NULL;
  }
  Py_XDECREF(own);
  calls.plain = type->tp_call;
  Py_XSETREF(calls.session, Py_NewRef(session));
  Py_XSETREF(calls.disabled, Py_NewRef(disabled));
  Py_XSETREF(calls.missed, Py_NewRef(missed));
  type->tp_call = called;
  Py_RETURN_TRUE;
}

#endif

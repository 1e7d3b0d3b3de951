/* What a replay does, once all fits. */
#ifndef SAPWOOD_REPLAY_DOES_H
#define SAPWOOD_REPLAY_DOES_H

#include "replay.h"

/* Have the words of a copy say where the arguments are; whether any said otherwise. */
static int write_words(const struct replay *r, const struct copies *copy) {
  int stale = 0;
  for (Py_ssize_t w = 0; w < copy->used; w++) {
    struct word *word = &copy->words[w];
    stale |= *word->at != r->lows[word->argument];
    word->before = *word->at;
    *word->at = r->lows[word->argument];
  }
  return stale;
}

static void put_back(const struct copies *copy) {
  for (Py_ssize_t w = 0; w < copy->used; w++)
    *copy->words[w].at = copy->words[w].before;
}

/* Set the nodes of copies to the arguments of this call; 0, or the driver's code. What
 * words say is what the driver knows: those of a node that it refuses are put back. */
static int aim(struct replay *r) {
  for (Py_ssize_t n = 0; n < r->nodes; n++) {
    const struct copies *copy = &r->copies[n];
    int code = write_words(r, copy) ? r->set(r->exec, copy->node, copy->params) : 0;
    if (code) {
      put_back(copy);
      return code;
    }
  }
  return 0;
}

static int launched(struct replay *r) {
  int code = aim(r);
  void *thread;
  if (code)
    return code;
  if (!Py_IsNone(r->launcher)) {
    PyObject *done = PyObject_CallNoArgs(r->launcher);
    Py_XDECREF(done);
    return !done;
  }
  /* It may wait for the device, and what runs there for the lock. */
  thread = PyEval_SaveThread();
  code = r->launch(r->exec, r->stream);
  PyEval_RestoreThread(thread);
  return code;
}

static PyObject *made(const struct maker *m) {
  return m->argument ? PyObject_CallOneArg(m->function, m->argument)
                     : PyObject_CallNoArgs(m->function);
}

/* The new arrays, and what else is picked; NULL with an error. */
static PyObject *values(const struct replay *r, PyObject *const *call,
                        PyObject *found) {
  PyObject *picks = at(r, PICKS), *list, *pool;
  Py_ssize_t constants, total;
  if (!(pool = PyList_New(r->made)))
    return NULL;
  for (Py_ssize_t k = 0; k < r->made; k++) {
    PyObject *array = made(&r->makers[k]);
    if (!array) {
      Py_XDECREF(pool);
      return NULL;
    }
    PyList_SetItem(pool, k, array);
  }
  if (!PyTuple_GET_SIZE(picks))
    return pool;
  constants = PyTuple_GET_SIZE(item(picks, 0)),
  total = PyTuple_GET_SIZE(item(picks, 1));
  list = PyList_New(total);
  for (Py_ssize_t k = 0; list && k < total; k++) {
    Py_ssize_t from = (Py_ssize_t)number(item(picks, 1), k);
    PyObject *one = from < r->made                  ? PyList_GetItem(pool, from)
                    : (from -= r->made) < constants ? item(item(picks, 0), from)
                    : (from -= constants) < r->count
                        ? call[from]
                        : PyList_GetItem(found, from - r->count);
    PyList_SetItem(list, k, Py_XNewRef(one));
  }
  Py_XDECREF(pool);
  return list;
}

static int bound(const struct replay *r, PyObject *found, PyObject *list) {
  PyObject *slots = at(r, BOUND), *expected = at(r, EXPECTED);
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(slots); k++) {
    PyObject *slot = item(slots, k);
    PyObject *value = PyList_GetItem(list, (Py_ssize_t)number(slot, 2)), *array, *done;
    if (!value)
      return 0;
    if (Py_IsNone(item(slot, 1))) {
      done = PyObject_CallOneArg(item(slot, 0), value);
      Py_XDECREF(done);
      if (!done)
        return 0;
      continue;
    }
    array = PyList_GetItem(found, (Py_ssize_t)number(slot, 0));
    if (!array || PyObject_SetAttr(array, item(slot, 1), value) < 0)
      return 0;
  }
  for (Py_ssize_t k = 1; k < PyTuple_GET_SIZE(expected); k++) {
    PyObject *pair = item(expected, k);
    PyObject *value = PyList_GetItem(list, (Py_ssize_t)number(pair, 1));
    PyObject *reference = value ? PyWeakref_NewRef(value, NULL) : NULL;
    if (!reference ||
        PyList_SetItem(item(expected, 0), (Py_ssize_t)number(pair, 0), reference) < 0)
      return 0;
  }
  return 1;
}

/* The result: the one value, or those before what is bound, as a nest. */
static PyObject *shaped(const struct replay *r, PyObject *list) {
  PyObject *shape = item(at(r, SHAPE), 0), *result, *inner;
  Py_ssize_t behind = r->bound, total = PyObject_Size(list);
  if (Py_IsNone(shape))
    return Py_XNewRef(PyList_GetItem(list, 0));
  if (!behind)
    return PyObject_CallFunctionObjArgs(shape, list, NULL);
  inner = PyList_New(total - behind);
  for (Py_ssize_t k = 0; inner && k < total - behind; k++)
    PyList_SetItem(inner, k, Py_XNewRef(PyList_GetItem(list, k)));
  result = inner ? PyObject_CallFunctionObjArgs(shape, inner, NULL) : NULL;
  Py_XDECREF(inner);
  return result;
}

static PyObject *result(const struct replay *r, PyObject *const *call,
                        PyObject *found) {
  PyObject *list, *shown = NULL;
  if (r->alone)
    return made(&r->makers[0]);
  list = values(r, call, found);
  if (list && bound(r, found, list))
    shown = shaped(r, list);
  Py_XDECREF(list);
  return shown;
}

#endif

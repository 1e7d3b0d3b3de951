/* What a replay does, once all fits. */
#ifndef SAPWOOD_REPLAY_DOES_H
#define SAPWOOD_REPLAY_DOES_H

#include "replay.h"

/* Have the words of a node say where the arguments are; whether any said otherwise. */
static int write_words(struct again *a, Size node) {
  int stale = 0;
  for (Size k = 0; k < a->count; k++)
    for (Size w = 0; w < a->arguments[k].used; w++) {
      struct word *word = &a->arguments[k].words[w];
      if (word->node != node)
        continue;
      stale |= *word->at != a->lows[k];
      word->before = *word->at;
      *word->at = a->lows[k];
    }
  return stale;
}

static void put_back(struct again *a, Size node) {
  for (Size k = 0; k < a->count; k++)
    for (Size w = 0; w < a->arguments[k].used; w++)
      if (a->arguments[k].words[w].node == node)
        *a->arguments[k].words[w].at = a->arguments[k].words[w].before;
}

/* Set the nodes of copies to the arguments of this call; 0, or the driver's code. What
 * words say is what the driver knows: those of a node that it refuses are put back. */
static int aim(struct again *a) {
  for (Size n = 0; n < a->nodes; n++) {
    int code = 0;
    if (write_words(a, n))
      code = a->set(a->exec, a->copies[n].node, a->copies[n].params);
    if (code) {
      put_back(a, n);
      return code;
    }
  }
  return 0;
}

static int launched(struct again *a) {
  int code = aim(a);
  void *thread;
  if (code)
    return code;
  /* It may wait for the device, and what runs there for the lock. */
  thread = PyEval_SaveThread();
  code = a->launch(a->exec, a->stream);
  PyEval_RestoreThread(thread);
  return code;
}

static Object *made(const struct maker *m) {
  return PyObject_Vectorcall(m->function, m->arguments, (size_t)m->count, NULL);
}

/* The new arrays, and what else is picked; NULL with an error. */
static Object *values(const struct again *a, Object *const *call, Object *found) {
  Object *picks = at(a, PICKS), *list, *pool;
  Size constants, total;
  if (!(pool = PyList_New(a->made)))
    return NULL;
  for (Size k = 0; k < a->made; k++) {
    Object *array = made(&a->makers[k]);
    if (!array) {
      Py_DecRef(pool);
      return NULL;
    }
    PyList_SetItem(pool, k, array);
  }
  if (!PyTuple_Size(picks))
    return pool;
  constants = PyTuple_Size(item(picks, 0)), total = PyTuple_Size(item(picks, 1));
  list = PyList_New(total);
  for (Size k = 0; list && k < total; k++) {
    Size from = (Size)number(item(picks, 1), k);
    Object *one = from < a->made ? PyList_GetItem(pool, from)
                  : (from -= a->made) < constants ? item(item(picks, 0), from)
                  : (from -= constants) < a->count
                      ? call[from]
                      : PyList_GetItem(found, from - a->count);
    PyList_SetItem(list, k, given(one));
  }
  Py_DecRef(pool);
  return list;
}

static int bound(const struct again *a, Object *found, Object *list) {
  Object *slots = at(a, BOUND), *expected = at(a, EXPECTED);
  for (Size k = 0; k < PyTuple_Size(slots); k++) {
    Object *slot = item(slots, k);
    Object *array = PyList_GetItem(found, (Size)number(slot, 0));
    Object *value = PyList_GetItem(list, (Size)number(slot, 2));
    if (!array || !value || PyObject_SetAttr(array, item(slot, 1), value) < 0)
      return 0;
  }
  for (Size k = 1; k < PyTuple_Size(expected); k++) {
    Object *pair = item(expected, k);
    Object *value = PyList_GetItem(list, (Size)number(pair, 1));
    Object *reference = value ? PyWeakref_NewRef(value, NULL) : NULL;
    if (!reference ||
        PyList_SetItem(item(expected, 0), (Size)number(pair, 0), reference) < 0)
      return 0;
  }
  return 1;
}

/* The result: the one value, or those before what is bound, as a nest. */
static Object *shaped(const struct again *a, Object *list) {
  Object *shape = item(at(a, SHAPE), 0), *result, *inner;
  Size behind = a->bound, total = PyObject_Size(list);
  if (is_none(shape))
    return given(PyList_GetItem(list, 0));
  if (!behind)
    return PyObject_CallFunctionObjArgs(shape, list, NULL);
  inner = PyList_New(total - behind);
  for (Size k = 0; inner && k < total - behind; k++)
    PyList_SetItem(inner, k, given(PyList_GetItem(list, k)));
  result = inner ? PyObject_CallFunctionObjArgs(shape, inner, NULL) : NULL;
  Py_DecRef(inner);
  return result;
}

static Object *result(const struct again *a, Object *const *call, Object *found) {
  Object *list, *shown = NULL;
  if (a->alone)
    return made(&a->makers[0]);
  list = values(a, call, found);
  if (list && bound(a, found, list))
    shown = shaped(a, list);
  Py_DecRef(list);
  return shown;
}

#endif

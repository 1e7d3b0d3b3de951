/* Whether all is as it was: then nothing has been done yet. */
#ifndef SAPWOOD_REPLAY_FITS_H
#define SAPWOOD_REPLAY_FITS_H

#include "replay.h"

/* The target of a weak reference, not owned: somebody else has it. */
static PyObject *borrowed(PyObject *reference) {
  PyObject *target = target_of(reference);
  Py_XDECREF(target);
  return target;
}

static const struct replay_state *state_of(const struct replay *r) {
  return (const struct replay_state *)borrowed(item(at(r, STATE), 0));
}

/* No storage changed writer or readers since the last replay that looked. */
static int is_order_same(const struct replay *r) {
  const struct replay_state *state = state_of(r);
  return state && state->stream_epoch == r->stream_epoch->now;
}

/* What it has kept is as it was. */
static int is_state_same(const struct replay *r) {
  const struct replay_state *state = state_of(r);
  return state && state->epoch == r->epoch &&
         state->guard_epoch == r->guards->epoch;
}

static int is_on_stream(const struct replay *r) {
  void *stream = NULL;
  return !r->given->exchange->current(CUDA, r->ordinal, &stream) &&
         stream == r->stream;
}

/* Whether an argument fits; whether it is the same object is told, too. */
static int fits(struct replay *r, Py_ssize_t k, PyObject *array, int *same) {
  const struct probe *p = r->given;
  const struct known *known = &p->known[k];
  int is_it = 0;
  if (!is_alike(p, k, array, &r->lows[k], &is_it))
    return 0;
  *same &= is_it;
  if (is_it && !known->lazy)
    return is_wanted(p, array, known);
  if (r->lows[k] != known->address && r->arguments[k].fixed)
    return 0;
  r->loose |= !is_it && p->exchange == &strided &&
              !is_settled(array, borrowed(at(r, STREAM)));
  return flags_of(p, array) == known->flags;
}

/* Sort the arguments by where they are: mostly they are in order, from the last call. */
static void sort(struct replay *r) {
  for (Py_ssize_t n = 1; n < r->count; n++) {
    Py_ssize_t k = r->order[n], i = n;
    for (; i && r->lows[r->order[i - 1]] > r->lows[k]; i--)
      r->order[i] = r->order[i - 1];
    r->order[i] = k;
  }
}

/* Whether no array is passed twice: it would lie where it does, but be the same one. */
static int are_others(const struct replay *r, PyObject *const *call) {
  for (Py_ssize_t n = 1; n < r->count; n++)
    for (Py_ssize_t i = n; i && r->lows[r->order[i - 1]] == r->lows[r->order[n]]; i--)
      if (call[r->order[i - 1]] == call[r->order[n]])
        return 0;
  return 1;
}

/* Whether those that lie within others' places are as far behind as they were. */
static int are_views_alike(const struct replay *r) {
  for (Py_ssize_t k = 0; k < r->count; k++) {
    const struct argument *one = &r->arguments[k];
    if (one->within >= 0 &&
        r->lows[k] != r->lows[one->within] + (uint64_t)one->behind)
      return 0;
  }
  return 1;
}

/* Whether the arguments share bytes with nothing, each other included. */
static int are_apart(const struct replay *r) {
  uint64_t reached = 0;
  for (Py_ssize_t n = 0; n < r->count; n++) {
    Py_ssize_t k = r->order[n], before = 0, above = r->others;
    uint64_t low = r->lows[k], end = low + r->arguments[k].length;
    if (low == end)
      continue;
    if (low < reached)
      return 0;
    reached = end;
    while (before < above) { /* the starts below the end */
      Py_ssize_t middle = (before + above) / 2;
      if (r->starts[middle] < end)
        before = middle + 1;
      else
        above = middle;
    }
    if (before && low < r->ends[before - 1])
      return 0;
  }
  return 1;
}

/* Whether all work was on this stream, and all bytes are as good as ever: then nothing
 * is to be ordered, whatever is used. */
static int is_alone(const struct replay *r) {
  PyObject *single = r->recordings->single_stream, *stream = borrowed(at(r, STREAM));
  return single && !Py_IsNone(single) && stream && refers_to(single, stream) &&
         !r->pages->revoked;
}

static int are_arguments_fit(struct replay *r, PyObject *const *call) {
  int same = 1;
  r->loose = 0;
  for (Py_ssize_t k = 0; k < r->count; k++)
    if (!fits(r, k, call[k], &same))
      return 0;
  r->loose |= !same && !is_alone(r);
  if (same)
    return 1;
  sort(r);
  return are_others(r, call) && are_views_alike(r) && are_apart(r);
}

/* Whether a mask is without these pages, or has them all; one that did is known. */
static int is_mask(PyObject *mask, PyObject *pages, PyObject **known, int all) {
  PyObject *both;
  int fit;
  if (mask == *known)
    return 1;
  if (!mask || !(both = PyNumber_And(mask, pages)))
    return 0;
  fit = all ? PyObject_RichCompareBool(both, pages, Py_EQ) == 1
            : PyObject_IsTrue(both) == 0;
  Py_XDECREF(both);
  if (fit)
    Py_XSETREF(*known, Py_NewRef(mask));
  return fit;
}

/* Whether nobody has what is kept, as far as one can see without a call. */
static int is_unheld(const struct replay *r) {
  for (Py_ssize_t k = 0; k < r->kept; k++)
    if (Py_REFCNT(r->uses[k].object) != r->uses[k].references)
      return 0;
  return 1;
}

/* Whether none of the recordings that copied less out fits: all have outputs alive. */
static int is_cheapest(struct replay *r) {
  PyObject *rivals = at(r, RIVALS), *live = r->pages->live;
  if (live == r->rivalled)
    return 1;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(rivals); k++) {
    PyObject *both = live ? PyNumber_And(live, item(rivals, k)) : NULL;
    int held = both && PyObject_IsTrue(both) == 1;
    Py_XDECREF(both);
    if (!held)
      return 0;
  }
  Py_XSETREF(r->rivalled, Py_XNewRef(live));
  return 1;
}

/* Whether what is kept holds its pages, and nobody else any that the replay overwrites:
 * other fast replays are asked to rest, and any code may run. */
static int has_room(struct replay *r) {
  PyObject *state = borrowed(item(at(r, STATE), 0)), *woken;
  int awake = state && !((const struct replay_state *)state)->rests;
  if (!state || (awake && is_mask(r->pages->live, item(at(r, MASKS), 0), &r->live, 0)))
    return state != NULL;
  woken = PyObject_CallMethod(Py_NewRef(state), "wake", NULL);
  Py_DECREF(state);
  Py_XDECREF(woken);
  return woken == Py_True;
}

static int is_free(struct replay *r) {
  PyObject *counted = at(r, COUNTED);
  if (!is_unheld(r) || !is_mask(r->pages->live, item(at(r, MASKS), 0), &r->live, 0) ||
      !is_cheapest(r))
    return 0;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(item(counted, 1)); k++) {
    PyObject *count = PyObject_CallOneArg(item(counted, 0), item(item(counted, 1), k));
    int same = count &&
               PyLong_AsLongLong(count) == PyLong_AsLongLong(item(item(counted, 2), k));
    Py_XDECREF(count);
    if (!same)
      return 0;
  }
  return 1;
}

/* Whether nothing is to be ordered: the stream alone has used all that is used now. */
static int is_ordered(struct replay *r) {
  PyObject *uses = r->pages->uses, *stream = borrowed(at(r, STREAM));
  return !r->loose && is_order_same(r) && stream && uses && PyDict_Size(uses) == 1 &&
         is_mask(PyDict_GetItemWithError(uses, stream), item(at(r, MASKS), 1),
                 &r->claimed, 1);
}

/* Have the stream ordered after all uses; whether it is. Any code may run. */
static int orders(struct replay *r, PyObject *const *call, PyObject *found) {
  PyObject *state = Py_XNewRef(borrowed(item(at(r, STATE), 0))), *done = NULL;
  PyObject *arrays = PyTuple_New(r->count);
  for (Py_ssize_t k = 0; arrays && k < r->count; k++)
    PyTuple_SET_ITEM(arrays, k, Py_NewRef(call[k]));
  if (state && arrays)
    done = PyObject_CallMethod(state, "order", "OO", arrays, found);
  Py_XDECREF(state);
  Py_XDECREF(arrays);
  Py_XDECREF(done);
  return done == Py_True;
}

static int are_there(const struct replay *r, PyObject *found) {
  if (PyObject_Size(found) != r->read)
    return 0;
  for (Py_ssize_t k = 0; k < r->read; k++) {
    PyObject *array = PyList_GetItem(found, k);
    if (!array || !is_there(r->seen, k, array))
      return 0;
  }
  return 1;
}

/* Whether what the function reads is as it was; the arrays are handed over. */
static int is_read(struct replay *r, PyObject **found) {
  *found = PyObject_CallNoArgs(at(r, LOOK));
  return *found && !Py_IsNone(*found) && are_there(r, *found);
}

/* Whether an argument is what it was of all that is reached: a certain array, or none.
 */
static int is_which(PyObject *argument, PyObject *references, Py_ssize_t which) {
  if (which >= 0)
    return refers_to(item(references, which), argument);
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(references); k++)
    if (refers_to(item(references, k), argument))
      return 0;
  return 1;
}

/* The same of all arguments; what is read has been looked at. */
static int are_those(const struct replay *r, PyObject *const *call) {
  PyObject *which = at(r, WHICH), *seen;
  if (!PyTuple_GET_SIZE(which))
    return 1;
  seen = item(which, 1);
  for (Py_ssize_t k = 0; k < PyObject_Size(item(which, 0)); k++)
    if (PyList_GetItem(item(which, 0), k) != item(seen, k))
      return 0;
  for (Py_ssize_t k = 0; k < r->count; k++)
    if (!is_which(call[k], seen, (Py_ssize_t)PyLong_AsLong(item(item(which, 2), k))))
      return 0;
  return 1;
}

/* What may be looked at before what the function reads, which takes longer: an output
 * that is held, as where two recordings take turns, is seen at once. */
static int is_like_before(struct replay *r, PyObject *const *call) {
  void *context;
  return is_on_stream(r) && is_state_same(r) && are_arguments_fit(r, call) &&
         is_unheld(r) && !r->context_of(&context) && context == r->context;
}

/* Whether what it keeps, and all pages that it overwrites, are its own at this moment. */
static int is_ready(struct replay *r) {
  return is_state_same(r) && !state_of(r)->rests && is_free(r);
}

/* What the fast replay keeps, owned: what is known of it by number stays. NULL where it
 * may not be had: what ran till now, a finaliser perhaps, may have replayed or evicted.
 * Who else uses an output is said, on any thread, before it is dropped: so it is asked
 * after that. */
static PyObject *taken(struct replay *r, PyObject *const *call, PyObject *found) {
  if (!has_room(r) || !is_ready(r))
    return NULL;
  if (!is_ordered(r) && (!orders(r, call, found) || !is_ready(r)))
    return NULL;
  return Py_XNewRef(state_of(r)->kept);
}

#endif

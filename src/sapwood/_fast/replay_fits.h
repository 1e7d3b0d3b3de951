/* Whether all is as it was: then nothing has been done yet. */
#ifndef SAPWOOD_REPLAY_FITS_H
#define SAPWOOD_REPLAY_FITS_H

#include "replay.h"

static int refers_to(Object *reference, const Object *value) {
  Object *target = NULL;
  int same;
  if (!PyWeakref_GetRef)
    return PyWeakref_GetObject(reference) == value;
  PyWeakref_GetRef(reference, &target);
  same = target == value;
  if (target)
    Py_DecRef(target);
  return same;
}

static Object *target_of(Object *reference) { /* not owned: somebody else has it */
  Object *target = NULL;
  if (!PyWeakref_GetRef)
    target = PyWeakref_GetObject(reference);
  else if (PyWeakref_GetRef(reference, &target) == 1)
    Py_DecRef(target);
  return target && is_none(target) ? NULL : target;
}

/* How things stand between streams is as it was. */
static int is_order_same(const struct again *a) {
  Object *fast = target_of(at(a, FAST_REPLAY));
  return fast &&
         same_number(slot_of(a, fast, CHANGES_), slot(a, CHANGES, LATEST));
}

/* What it has kept is as it was. */
static int is_state_same(const struct again *a) {
  Object *fast = target_of(at(a, FAST_REPLAY)), *state = at(a, STATE);
  return fast && same_number(slot_of(a, fast, ERA), item(state, 0)) &&
         slot_of(a, fast, MARKS_) == item(state, 1) &&
         same_number(slot_of(a, fast, RENEWALS_), slot(a, GLANCE, RENEWALS));
}

static int is_on_stream(const struct again *a) {
  void *stream = NULL;
  return !a->exchange->current(CUDA, a->ordinal, &stream) && stream == a->stream;
}

static int is_like(const Tensor *found, const Tensor *seen) {
  size_t size = (size_t)seen->dims * sizeof *seen->shape;
  return found->dims == seen->dims && found->code == seen->code &&
         found->bits == seen->bits && found->lanes == seen->lanes &&
         found->device == seen->device && found->ordinal == seen->ordinal &&
         !memcmp(found->shape, seen->shape, size) &&
         !memcmp(found->strides, seen->strides, size);
}

/* What a layout does not say, a bit each: whether it requires grad, is a leaf, and so
 * on; -1 where that cannot be said. */
static int flags_of(const struct again *a, Object *tensor) {
  int flags = 0;
  for (Size k = 0; k < a->kinds; k++) {
    Object *kind = item(at(a, FLAGS), k);
    Object *value = PyObject_GetAttr(tensor, item(kind, 0)), *method = value;
    if (value && item(kind, 1) == &_Py_TrueStruct) {
      value = PyObject_CallNoArgs(method);
      Py_DecRef(method);
    }
    Py_DecRef(value); /* if any: True or False */
    if (!value)
      return -1;
    flags |= (value == &_Py_TrueStruct) << k;
  }
  return flags;
}

static int is_wanted(const struct again *a, Object *tensor, int wanted) {
  Object *value = PyObject_GetAttr(tensor, at(a, WANTS));
  Py_DecRef(value);
  return value == (wanted ? &_Py_TrueStruct : &_Py_FalseStruct);
}

/* Whether an argument fits; whether it is the same object is told, too. */
static int fits(struct again *a, Size k, Object *tensor, int *same) {
  struct argument *arg = &a->arguments[k];
  Tensor found;
  uint64_t address;
  if ((Object *)tensor->type != arg->class || a->exchange->look(tensor, &found) ||
      !is_like(&found, &arg->known.seen))
    return 0;
  address = a->lows[k] = (uint64_t)found.data + found.offset;
  if (!refers_to(arg->reference, tensor) || address != arg->address)
    *same = 0;
  else if (!arg->known.lazy)
    return !a->grad || is_wanted(a, tensor, arg->known.flags & 1);
  if (address != arg->address &&
      (arg->fixed || (address | arg->address) & (VECTOR - 1)))
    return 0;
  return flags_of(a, tensor) == arg->known.flags;
}

/* Whether the arguments share bytes with nothing, each other included. */
static int are_apart(const struct again *a) {
  for (Size k = 0; k < a->count; k++) {
    uint64_t low = a->lows[k], end = low + a->arguments[k].length;
    Size before = 0, above = a->others;
    if (low == end)
      continue;
    for (Size j = 0; j < k; j++)
      if (low < a->lows[j] + a->arguments[j].length && a->lows[j] < end)
        return 0;
    while (before < above) { /* the starts below the end */
      Size middle = (before + above) / 2;
      if (a->starts[middle] < end)
        before = middle + 1;
      else
        above = middle;
    }
    if (before && low < a->ends[before - 1])
      return 0;
  }
  return 1;
}

/* Whether all work was on this stream, and all bytes are as good as ever: then nothing
 * is to be ordered, whatever is used. */
static int is_alone(const struct again *a) {
  Object *alone = slot(a, FOREST, ALONE), *stream = target_of(at(a, STREAM));
  return alone && !is_none(alone) && stream && refers_to(alone, stream) &&
         slot(a, PAGES, REVOKED) == &_Py_FalseStruct;
}

/* Whether no array is passed twice: it would lie where it does, but be the same one. */
static int are_others(const struct again *a, Object *const *call) {
  for (Size k = 1; k < a->count; k++)
    for (Size j = 0; j < k; j++)
      if (call[k] == call[j])
        return 0;
  return 1;
}

static int are_arguments_fit(struct again *a, Object *const *call) {
  int same = 1;
  for (Size k = 0; k < a->count; k++)
    if (!fits(a, k, call[k], &same))
      return 0;
  return same || (is_alone(a) && are_others(a, call) && are_apart(a));
}

/* Whether a mask is without these pages, or has them all; one that did is known. */
static int is_mask(Object *mask, Object *pages, Object **known, int all) {
  Object *both;
  int fit;
  if (mask == *known)
    return 1;
  if (!mask || !(both = PyNumber_And(mask, pages)))
    return 0;
  fit = all ? PyObject_RichCompareBool(both, pages, EQUAL) == 1
            : PyObject_IsTrue(both) == 0;
  Py_DecRef(both);
  if (fit) {
    Object *old = *known;
    *known = given(mask);
    Py_DecRef(old);
  }
  return fit;
}

/* Whether nobody has what is kept, as far as one can see without a call. */
static int is_unheld(const struct again *a) {
  for (Size k = 0; k < a->kept; k++)
    if (a->uses[k].object->references != a->uses[k].references)
      return 0;
  return 1;
}

/* Whether none of the recordings that copied less out fits: all have outputs alive. */
static int is_cheapest(struct again *a) {
  Object *rivals = at(a, RIVALS), *live = slot(a, PAGES, LIVE), *old = a->rivalled;
  if (live == old)
    return 1;
  for (Size k = 0; k < PyTuple_Size(rivals); k++) {
    Object *both = live ? PyNumber_And(live, item(rivals, k)) : NULL;
    int held = both && PyObject_IsTrue(both) == 1;
    Py_DecRef(both);
    if (!held)
      return 0;
  }
  a->rivalled = given(live);
  Py_DecRef(old);
  return 1;
}

static int is_free(struct again *a) {
  Object *counted = at(a, COUNTED), *masks = at(a, MASKS);
  Object *uses = slot(a, PAGES, USES), *stream = target_of(at(a, STREAM));
  if (!is_unheld(a) || !is_mask(slot(a, PAGES, LIVE), item(masks, 0), &a->live, 0) ||
      !is_cheapest(a))
    return 0;
  for (Size k = 0; k < PyTuple_Size(item(counted, 1)); k++) {
    Object *count = PyObject_CallOneArg(item(counted, 0), item(item(counted, 1), k));
    int same = count && same_number(count, item(item(counted, 2), k));
    Py_DecRef(count);
    if (!same)
      return 0;
  }
  return stream && uses && PyDict_Size(uses) == 1 &&
         is_mask(PyDict_GetItemWithError(uses, stream), item(masks, 1), &a->claimed, 1);
}

/* Look at an array that is known to be one; dtypes are numbers of the framework's. */
static int seen_quickly(const struct again *a, Object *array, Tensor *seen) {
  const struct quick *q = &a->quick;
  const void *tensor = (const char *)array + a->inside;
  int64_t dims;
  int32_t dtype;
  *seen = (Tensor){0};
  if (q->data(tensor, &seen->data) || q->dims(tensor, &dims) ||
      q->shape(tensor, &seen->shape) || q->strides(tensor, &seen->strides) ||
      q->dtype(tensor, &dtype))
    return 0;
  seen->dims = (int32_t)dims, seen->ordinal = dtype;
  return 1;
}

static int is_seen(const struct again *a, Object *array, Tensor *seen) {
  return a->quick.data ? seen_quickly(a, array, seen) : !a->exchange->look(array, seen);
}

/* Whether an array that is known lies where it did, and looks as it did. */
static int is_there(const struct again *a, Object *array, Size k) {
  const struct known *known = &a->known[k];
  Tensor seen;
  return is_seen(a, array, &seen) &&
         (uint64_t)seen.data + seen.offset == a->marks[k] &&
         is_like(&seen, &known->seen) &&
         (!known->lazy || flags_of(a, array) == known->flags);
}

static int are_there(const struct again *a, Object *found) {
  Object *wanted = item(at(a, MARKS), 1);
  if (PyObject_Size(found) != a->read)
    return 0;
  for (Size k = 0; k < a->read; k++) {
    Object *array = PyList_GetItem(found, k);
    if (!array || !is_there(a, array, k))
      return 0;
    if (PyTuple_Size(wanted) &&
        !is_wanted(a, array, item(wanted, k) == &_Py_TrueStruct))
      return 0;
  }
  return 1;
}

static int is_number_there(void *told, Object *array, Size k) {
  return is_there(told, array, k);
}

/* Whether what the function reads is as it was; it is found where that is used. */
static int is_read(struct again *a, Object **found) {
  int seen = CANNOT_SAY;
  if (a->asked)
    seen = a->asked->look(a->asked, a->read, is_number_there, a);
  if (seen != CANNOT_SAY)
    return seen;
  *found = PyObject_CallNoArgs(at(a, LOOK));
  return *found && !is_none(*found) && are_there(a, *found);
}

/* Whether an argument is what it was of all that is reached: a certain array, or none. */
static int is_which(Object *argument, Object *references, Size which) {
  if (which >= 0)
    return refers_to(item(references, which), argument);
  for (Size k = 0; k < PyTuple_Size(references); k++)
    if (refers_to(item(references, k), argument))
      return 0;
  return 1;
}

/* The same of all arguments; what is read has been looked at. */
static int are_those(const struct again *a, Object *const *call) {
  Object *which = at(a, WHICH), *seen;
  if (!PyTuple_Size(which))
    return 1;
  seen = item(which, 1);
  for (Size k = 0; k < PyObject_Size(item(which, 0)); k++)
    if (PyList_GetItem(item(which, 0), k) != item(seen, k))
      return 0;
  for (Size k = 0; k < a->count; k++)
    if (!is_which(call[k], seen, (Size)PyLong_AsLong(item(item(which, 2), k))))
      return 0;
  return 1;
}

/* What may be looked at before what the function reads, which takes longer: an output
 * that is held, as where two recordings take turns, is seen at once. */
static int is_like_before(struct again *a, Object *const *call) {
  void *context;
  return is_on_stream(a) && is_state_same(a) && are_arguments_fit(a, call) &&
         is_unheld(a) && !a->context_of(&context) && context == a->context;
}

/* What the fast replay keeps, owned: what is known of it by number stays. NULL where it may
 * not be had: what ran till now, a finaliser perhaps, may have replayed or evicted. Who
 * else uses an output is said, on any thread, before it is dropped: so it is asked
 * after that. */
static Object *taken(struct again *a) {
  if (!is_state_same(a) || !is_free(a) || !is_order_same(a))
    return NULL;
  return given(slot_of(a, target_of(at(a, FAST_REPLAY)), KEPT));
}

#endif

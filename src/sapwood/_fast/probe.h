/* Whether arrays look as some did, and where they are: the one answer in C. */
#ifndef SAPWOOD_PROBE_H
#define SAPWOOD_PROBE_H

#include "native.h"
#include <stdint.h>
#include <string.h>

enum { CUDA = 2, COMPLEX = 5 };

typedef struct {
  void *data;
  int32_t device, ordinal, dims;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} Tensor;

/* DLPackExchangeAPI of DLPack 1.3. */
struct exchange {
  uint32_t major, minor;
  void *previous, *allocate, *managed, *to_python;
  int (*look)(PyObject *, Tensor *);
  int (*current)(int32_t, int32_t, void **);
};

/* What tells the same of a pointer to an array, sooner. Each returns 0. */
struct quick {
  int (*data)(const void *, void **); /* or NULL: there is none of them */
  int (*dims)(const void *, int64_t *);
  int (*shape)(const void *, int64_t **), (*strides)(const void *, int64_t **);
  int (*dtype)(const void *, int32_t *);
};

/* What an array looked like: shape and strides are its own. */
struct known {
  Tensor seen;
  PyObject *reference, *class; /* owned, the reference weak */
  uint64_t address;
  int32_t dtype;   /* the framework's number, as `quick` tells it */
  int flags, lazy; /* lazy: it may be conjugate, which its flags say alone */
};

struct probe {
  PyObject_HEAD const struct exchange *exchange;
  struct quick quick;
  Py_ssize_t inside, count;
  uint64_t vector; /* as far as an address is aligned, kernels are chosen by that */
  PyObject *flags, *mode, *lows; /* owned */
  int grad;                      /* whether it matters that arrays require grad */
  struct known *known;
};

static inline int is_like(const Tensor *found, const Tensor *seen) {
  size_t size = (size_t)seen->dims * sizeof *seen->shape;
  return found->dims == seen->dims && found->code == seen->code &&
         found->bits == seen->bits && found->lanes == seen->lanes &&
         found->device == seen->device && found->ordinal == seen->ordinal &&
         !memcmp(found->shape, seen->shape, size) &&
         !memcmp(found->strides, seen->strides, size);
}

static inline uint64_t aligned(const struct probe *p, uint64_t address) {
  return address & (p->vector - 1) ? address & -address : p->vector;
}

/* What a look does not say, a bit each, of an attribute or of what is called with the
 * array: whether it requires grad, is a leaf, and so on; -1 where that cannot be said.
 */
static inline int flags_of(const struct probe *p, PyObject *array) {
  int flags = 0;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(p->flags); k++) {
    PyObject *kind = item(p->flags, k);
    PyObject *value = PyUnicode_Check(kind) ? PyObject_GetAttr(array, kind)
                                            : PyObject_CallOneArg(kind, array);
    Py_XDECREF(value); /* if any: True or False */
    if (!value)
      return -1;
    flags |= (value == Py_True) << k;
  }
  return flags;
}

/* Whether an array requires grad as one did, the first of what flags tell; or it does
 * not matter. */
static inline int is_wanted(const struct probe *p, PyObject *array,
                            const struct known *known) {
  PyObject *value;
  if (!p->grad)
    return 1;
  value = PyObject_GetAttr(array, item(p->flags, 0));
  Py_XDECREF(value);
  return value == (known->flags & 1 ? Py_True : Py_False);
}

/* Whether an array looks as the k-th did, but for its flags; where it is, and whether
 * it is that one and where it was, is told. */
static inline int is_alike(const struct probe *p, Py_ssize_t k, PyObject *array,
                           uint64_t *address, int *same) {
  const struct known *known = &p->known[k];
  Tensor found;
  if ((PyObject *)Py_TYPE(array) != known->class || p->exchange->look(array, &found))
    return 0;
  *address = (uint64_t)found.data + found.offset;
  *same = *address == known->address && refers_to(known->reference, array);
  return is_like(&found, &known->seen) &&
         aligned(p, *address) == aligned(p, known->address);
}

static inline int is_seen_quickly(const struct probe *p, const struct known *known,
                                  PyObject *array) {
  const struct quick *q = &p->quick;
  const void *tensor = (const char *)array + p->inside;
  size_t size = (size_t)known->seen.dims * sizeof *known->seen.shape;
  int64_t dims, *shape, *strides;
  int32_t dtype;
  void *data;
  return !q->data(tensor, &data) && (uint64_t)data == known->address &&
         !q->dims(tensor, &dims) && dims == known->seen.dims &&
         !q->dtype(tensor, &dtype) && dtype == known->dtype &&
         !q->shape(tensor, &shape) && !memcmp(shape, known->seen.shape, size) &&
         !q->strides(tensor, &strides) && !memcmp(strides, known->seen.strides, size);
}

/* Whether an array that stands where the k-th did is it for all that may change. */
static inline int is_there(const struct probe *p, Py_ssize_t k, PyObject *array) {
  const struct known *known = &p->known[k];
  uint64_t address;
  int same;
  if (p->quick.data ? !is_seen_quickly(p, known, array)
                    : !is_alike(p, k, array, &address, &same) ||
                          address != known->address)
    return 0;
  return known->lazy ? flags_of(p, array) == known->flags
                     : is_wanted(p, array, known);
}

/* Looks at arrays by their attributes. */
extern const struct exchange strided;

/* Whether the bytes of such an array had no other user than a stream, as far as that is
 * known: of memory that is not this library's, its owner sees to the order. */
int is_settled(PyObject *array, PyObject *stream);

#endif

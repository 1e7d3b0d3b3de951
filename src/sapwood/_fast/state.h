/* What replays look at, as it lies in the objects that own it: see state.py. */
#ifndef SAPWOOD_STATE_H
#define SAPWOOD_STATE_H

#include "native.h"

struct stream_epoch {
  PyObject_HEAD long long now;
};

struct page_state {
  PyObject_HEAD PyObject *live, *uses;
  long long writes;
  char revoked;
};

struct recordings_state {
  PyObject_HEAD PyObject *single_stream;
};

struct guard_state {
  PyObject_HEAD long long epoch;
};

struct replay_state {
  PyObject_HEAD long long epoch, stream_epoch, guard_epoch;
  PyObject *kept;
  char rests;
};

struct skips_state {
  PyObject_HEAD long long left, passed;
  PyObject *target;
};

struct replays_state {
  PyObject_HEAD PyObject *players, *skips;
};

struct call_state {
  PyObject_HEAD PyObject *fast_replays, *runtime, *on;
};

#endif

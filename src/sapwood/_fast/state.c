/* Classes whose objects hold what a replay looks at: C reads it where it lies, Python
 * by attributes. They are a module of their own, so that what looks can be exchanged.
 */
#include "state.h"
#include <structmember.h>

#define NUMBER(struct_, name)                                                          \
  {#name, T_LONGLONG, offsetof(struct struct_, name), 0, NULL}
#define TRUTH(struct_, name) {#name, T_BOOL, offsetof(struct struct_, name), 0, NULL}
#define OBJECT(struct_, name)                                                          \
  {#name, T_OBJECT_EX, offsetof(struct struct_, name), 0, NULL}
#define HIDDEN(struct_, name)                                                          \
  {"_" #name, T_OBJECT_EX, offsetof(struct struct_, name), 0, NULL}
#define END {NULL, 0, 0, 0, NULL}

/* Each object member once: the collector goes through them by their descriptions. */
static PyMemberDef epoch_members[] = {NUMBER(stream_epoch, now), END};
static PyMemberDef page_members[] = {OBJECT(page_state, live), OBJECT(page_state, uses),
                                     NUMBER(page_state, writes),
                                     TRUTH(page_state, revoked), END};
static PyMemberDef recordings_members[] = {OBJECT(recordings_state, single_stream),
                                           END};
static PyMemberDef guard_members[] = {NUMBER(guard_state, epoch), END};
static PyMemberDef replay_members[] = {
    NUMBER(replay_state, epoch),       NUMBER(replay_state, stream_epoch),
    NUMBER(replay_state, guard_epoch), OBJECT(replay_state, kept),
    TRUTH(replay_state, rests),        END};
static PyMemberDef skips_members[] = {NUMBER(skips_state, left),
                                      NUMBER(skips_state, passed),
                                      OBJECT(skips_state, target), END};
static PyMemberDef replays_members[] = {OBJECT(replays_state, players),
                                        OBJECT(replays_state, skips), END};
static PyMemberDef call_members[] = {HIDDEN(call_state, fast_replays),
                                     HIDDEN(call_state, runtime),
                                     HIDDEN(call_state, on), END};

/* The class of these that an object's class derives from, whose base is `object`. */
static PyTypeObject *own_type(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  while (type->tp_base != &PyBaseObject_Type)
    type = type->tp_base;
  return type;
}

static PyObject **slot(PyObject *self, const PyMemberDef *member) {
  return member->type == T_OBJECT_EX ? (PyObject **)((char *)self + member->offset)
                                     : NULL;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
  for (PyMemberDef *m = own_type(self)->tp_members; m->name; m++)
    if (slot(self, m))
      Py_VISIT(*slot(self, m));
  return 0;
}

static int clear(PyObject *self) {
  for (PyMemberDef *m = own_type(self)->tp_members; m->name; m++)
    if (slot(self, m))
      Py_CLEAR(*slot(self, m));
  return 0;
}

static void discard(PyObject *self) {
  PyObject_GC_UnTrack(self);
  clear(self);
  Py_TYPE(self)->tp_free(self);
}

/* Threads may pass each other: no number comes back, so all of them see a change. */
static PyObject *advance(PyObject *self, PyObject *unused) {
  (void)unused;
  ((struct stream_epoch *)self)->now++;
  Py_RETURN_NONE;
}

static PyMethodDef epoch_methods[] = {{"advance", advance, METH_NOARGS, NULL},
                                      {NULL, NULL, 0, NULL}};

#define STATE(title, struct_, list)                                                    \
  {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "sapwood._fast._state." title,             \
   .tp_basicsize = sizeof(struct struct_),                                             \
   .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,          \
   .tp_traverse = traverse,                                                            \
   .tp_clear = clear,                                                                  \
   .tp_dealloc = discard,                                                              \
   .tp_members = list}

static PyTypeObject types[] = {
    STATE("StreamEpoch", stream_epoch, epoch_members),
    STATE("PageState", page_state, page_members),
    STATE("RecordingsState", recordings_state, recordings_members),
    STATE("GuardState", guard_state, guard_members),
    STATE("ReplayState", replay_state, replay_members),
    STATE("SkipsState", skips_state, skips_members),
    STATE("ReplaysState", replays_state, replays_members),
    STATE("CallState", call_state, call_members),
};

static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "sapwood._fast._state",
                                        .m_size = -1};

PyMODINIT_FUNC PyInit__state(void) {
  PyObject *module;
  types[0].tp_methods = epoch_methods;
  module = PyModule_Create(&definition);
  if (module && PyModule_AddStringConstant(module, "VERSION", SAPWOOD_VERSION) < 0)
    Py_CLEAR(module);
  for (size_t k = 0; module && k < sizeof types / sizeof *types; k++) {
    /* Not `PyType_GenericNew`: CPython 3.11 and 3.12 keep the attributes of an object
     * in line, where the interpreter finds them in half of the time, only if `object`
     * has made it. */
    types[k].tp_new = PyBaseObject_Type.tp_new;
    if (PyModule_AddType(module, &types[k]) < 0)
      Py_CLEAR(module);
  }
  return module;
}

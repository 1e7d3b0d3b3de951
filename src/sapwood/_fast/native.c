/* The module: guards and replays as objects that are called. */
#include "native.h"

PyTypeObject *page_type, *recordings_type, *epoch_type, *guard_state_type;
PyTypeObject *replay_state_type, *replays_type, *skips_type, *call_type;

static PyMethodDef functions[] = {
    {"compile_guards", compile_guards, METH_VARARGS, NULL},
    {"compile_replay", compile_replay, METH_VARARGS, NULL},
    {"look_by_attributes", look_by_attributes, METH_VARARGS, NULL},
    {"make_probe", make_probe, METH_VARARGS, NULL},
    {"take_calls", take_calls, METH_VARARGS, NULL},
    {"watch_nothing", watch_nothing, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "sapwood._fast._native",
                                        .m_size = -1,
                                        .m_methods = functions};

/* The classes of `_state`, whose layout is known here; false with an error. */
static int find_types(void) {
  const struct {
    const char *name;
    PyTypeObject **type;
  } wanted[] = {{"StreamEpoch", &epoch_type},
                {"PageState", &page_type},
                {"RecordingsState", &recordings_type},
                {"GuardState", &guard_state_type},
                {"ReplayState", &replay_state_type},
                {"ReplaysState", &replays_type},
                {"SkipsState", &skips_type},
                {"CallState", &call_type}};
  PyObject *state = PyImport_ImportModule("sapwood._fast._state");
  for (size_t k = 0; state && k < sizeof wanted / sizeof *wanted; k++)
    /* Owned for good, as this module is. */
    if (!(*wanted[k].type =
              (PyTypeObject *)PyObject_GetAttrString(state, wanted[k].name)))
      break;
  Py_XDECREF(state);
  return !PyErr_Occurred();
}

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module;
  if (!find_types() || PyType_Ready(&guards_type) < 0 ||
      PyType_Ready(&probe_type) < 0 || PyType_Ready(&replay_type) < 0)
    return NULL;
  module = PyModule_Create(&definition);
  if (module && PyModule_AddStringConstant(module, "VERSION", SAPWOOD_VERSION) < 0)
    Py_CLEAR(module);
  if (module && PyModule_AddType(module, &probe_type) < 0)
    Py_CLEAR(module);
  return module;
}

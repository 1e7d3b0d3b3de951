"""Recording a call: the capture, what must hold of it, and the node that it becomes."""

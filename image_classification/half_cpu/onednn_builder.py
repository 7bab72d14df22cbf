"""What a primitive is described by: memory descriptors, attributes, and the forward descriptors of backward ones."""

from . import onednn_library as onednn


class Builder:
    """Makes the memory descriptors and attributes of one primitive and frees them when it is built."""

    def __init__(self, library):
        self._library = library
        self._made = []  # (function that frees it, handle)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for destroy, handle in self._made:
            destroy(handle)

    def _keep(self, destroy, handle):
        self._made.append((destroy, handle))
        return handle

    def md(self, layout):
        """Return a memory descriptor, or None for None (an argument that is not there)."""
        if layout is None:
            return None
        (data_type, shape, strides), library = layout, self._library
        if strides is None:
            create, how = library.memory_desc_create_with_tag, 1  # any order
        else:
            create, how = library.memory_desc_create_with_strides, onednn.dimensions(strides)
        handle = library.new("memory descriptor", create, len(shape), onednn.dimensions(shape), data_type, how)
        return self._keep(library.memory_desc_destroy, handle)

    def hint(self, name, *arguments):
        """Return the forward descriptor that a backward descriptor is derived from."""
        return self._keep(self._library.primitive_desc_destroy, self._library.description(name, *arguments))

    def attributes(self, post_ops):
        """Return attributes with post operations, None for none.

        Each is ``("eltwise", algorithm, alpha, beta)``, ``("binary", algorithm, layout of the second operand)`` or
        ``("sum",)``: what the destination holds is added.
        """
        if not post_ops:
            return None
        library = self._library
        chain = self._keep(library.post_ops_destroy, library.new("post operations", library.post_ops_create))
        for kind, *details in post_ops:
            if kind == "eltwise":
                status = library.post_ops_append_eltwise(chain, *details)
            elif kind == "sum":
                status = library.post_ops_append_sum(chain, 1.0, 0, 0)  # no zero point, the destination's own format
            else:
                algorithm, operand = details
                status = library.post_ops_append_binary(chain, algorithm, self.md(operand))
            library.check(status, kind)
        attributes = self._keep(library.primitive_attr_destroy, library.new_attributes())
        library.check(library.primitive_attr_set_post_ops(attributes, chain), "post operations")
        return attributes

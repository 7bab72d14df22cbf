"""What a primitive is described by: memory descriptors, attributes, and the forward descriptors of backward ones."""

from . import onednn_library as onednn


class Builder:
    """Makes the memory descriptors and attributes of one primitive and frees them when it is built."""

    def __init__(self, library):
        self._library = library
        self._descriptors = []
        self._attributes = []
        self._post_ops = []
        self._hints = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        library = self._library
        for handles, destroy in (
            (self._descriptors, library.memory_desc_destroy),
            (self._attributes, library.primitive_attr_destroy),
            (self._post_ops, library.post_ops_destroy),
            (self._hints, library.primitive_desc_destroy),
        ):
            for handle in handles:
                destroy(handle)

    def md(self, layout):
        """Return a memory descriptor, or None for None (an argument that is not there)."""
        if layout is None:
            return None
        data_type, shape, strides = layout
        if strides is None:
            arguments = (self._library.memory_desc_create_with_tag, len(shape), onednn.dimensions(shape), data_type, 1)
        else:
            arguments = (
                self._library.memory_desc_create_with_strides,
                len(shape),
                onednn.dimensions(shape),
                data_type,
                onednn.dimensions(strides),
            )
        handle = self._library.new("memory descriptor", *arguments)
        self._descriptors.append(handle)
        return handle

    def hint(self, name, *arguments):
        """Return the forward descriptor that a backward descriptor is derived from."""
        handle = self._library.description(name, *arguments)
        self._hints.append(handle)
        return handle

    def attributes(self, post_ops):
        """Return attributes with post operations, None for none.

        Each is ``("eltwise", algorithm, alpha, beta)``, ``("binary", algorithm, layout of the second operand)`` or
        ``("sum",)``: what the destination holds is added.
        """
        if not post_ops:
            return None
        library = self._library
        chain = library.new("post operations", library.post_ops_create)
        self._post_ops.append(chain)
        for kind, *details in post_ops:
            if kind == "eltwise":
                status = library.post_ops_append_eltwise(chain, *details)
            elif kind == "sum":
                status = library.post_ops_append_sum(chain, 1.0, 0, 0)  # no zero point, the destination's own format
            else:
                algorithm, operand = details
                status = library.post_ops_append_binary(chain, algorithm, self.md(operand))
            library.check(status, kind)
        attributes = library.new_attributes()
        self._attributes.append(attributes)
        library.check(library.primitive_attr_set_post_ops(attributes, chain), "post operations")
        return attributes

"""The private names of Paddle behind the kernel registry: a release that removes one, or words a key otherwise, fails
here."""

from image_classification.runtime import has_kernel, kernel_registry


def test_registry_names_operators_as_the_operator_table_does():
    registry = kernel_registry()
    assert {"matmul", "add", "conv2d", "softmax", "adamw", "cast"} <= registry.keys()
    formats = {dtype for found in registry.values() for _, dtype in found}
    assert formats == {"float32", "float64", "float16", "bfloat16"}


def test_cpu_has_float32_of_all_and_half_of_few():
    assert has_kernel("matmul", "cpu", "float32")
    assert has_kernel("cast", "cpu", "float16")
    assert not has_kernel("conv2d", "cpu", "float16")
    assert not has_kernel("no_such_operator", "cpu", "float32")

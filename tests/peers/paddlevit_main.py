"""PaddleViT's own program, on a CPU and in one process: `paddlevit_main.py <its folder> <its main> <its flags>`.

It asks for a GPU and for the processes that one has; nothing else is changed.
"""

import importlib
import sys

import paddle


def main():
    folder, program, *sys.argv[1:] = sys.argv[1:]
    sys.path.insert(0, folder)
    set_device = paddle.device.set_device
    paddle.device.set_device = lambda device: set_device("cpu")
    paddle.distributed.spawn = lambda function, args: function(*args)
    paddle.distributed.barrier = lambda *_: None
    importlib.import_module(program).main()


if __name__ == "__main__":
    main()

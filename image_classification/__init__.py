"""An image-classification zoo for PaddlePaddle whose subject is number formats."""

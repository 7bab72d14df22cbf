"""NVIDIA DALI as decoder, scaler and normaliser behind the same loader: an extra, ``pip install nvidia-dali-cuda120``.

Order, shares of the ranks, crops and flips come from this package, sample by sample, and DALI gets the encoded bytes
with the box to decode. So an epoch is the same as with the workers, up to the rounding of another JPEG decoder and
resize, a resume in mid-epoch costs nothing, and every data set of encoded images works. With a device DALI decodes on
that GPU, else on the CPU with threads.
"""

import numpy as np

from ..runtime import UserError
from .augmentation import image_steps, pixel_steps
from .decode import CorruptImage, decode, image_size
from .loader import EpochLoader
from .mixing import build_batch_transform
from .sampler import sample_rng
from .transforms import random_crop_box

_INTERPOLATIONS = {
    "nearest": "INTERP_NN",
    "bilinear": "INTERP_LINEAR",
    "bicubic": "INTERP_CUBIC",
    "lanczos": "INTERP_LANCZOS3",
}


class DaliLoader(EpochLoader):
    """Iterates like :class:`.loader.Loader`; images are float32 NumPy [B, C, H, W], or Paddle tensors on a GPU.

    Args:
        maker: data set, transform, number of classes and seed, as for the workers; the transform gives the geometry.
        device: index of the GPU that decodes, None for the CPU.
    """

    skipped_images = 0

    def __init__(self, maker, order, batch_size, mean, std, training, num_threads, device):
        super().__init__(maker, order, batch_size)
        self._training = training
        self._device = device
        self._build = lambda: _build_pipeline(maker.transform, batch_size, mean, std, num_threads, device)

    def iterate(self, start_batch=0):
        """Yield the batches of the epoch from ``start_batch`` on; those before it are not read.

        Raises:
            UserError: naming the file of a corrupt image or of a label out of range.
        """
        order, epoch = self._order(self.epoch), self.epoch
        # A new pipeline each time: what an abandoned iteration had fed would come out first.
        pipeline = self._build()
        if start_batch < len(self):
            labels = self._feed(pipeline, order, start_batch, epoch)
        for number in range(start_batch, len(self)):
            images, finished_labels = self._run(pipeline, order, number), labels
            if number + 1 < len(self):  # before the yield: DALI goes on while the batch is used
                labels = self._feed(pipeline, order, number + 1, epoch)
            yield (images, finished_labels) if self.mix is None else self.mix(images, finished_labels, epoch, number)

    def _batch(self, order, number):
        return order[number * self.batch_size : (number + 1) * self.batch_size].tolist()

    def _feed(self, pipeline, order, number, epoch):
        """Hand a batch to DALI, start its decoding, return its labels int64 [B]."""
        contents, boxes, sizes, mirrors, labels = [], [], [], [], []
        for index, repeat in self._batch(order, number):
            try:
                content, label = self.dataset.read(index)
                box, size, mirror = self._geometry(content, sample_rng(self.maker.seed, epoch, index, repeat))
            except CorruptImage as error:
                raise UserError(f"{self.dataset.describe(index)}: corrupt image ({error})") from error
            self.maker.check_label(index, label)
            contents.append(np.frombuffer(content, np.uint8))
            boxes.append(np.array(box, np.int32))
            sizes.append(np.array(size, np.float32))
            mirrors.append(np.array(mirror, np.int32))
            labels.append(label)
        pipeline.feed_input("contents", contents)
        pipeline.feed_input("anchors", [box[:2] for box in boxes])
        pipeline.feed_input("shapes", [box[2:] for box in boxes])
        pipeline.feed_input("sizes", sizes)
        pipeline.feed_input("mirrors", mirrors)
        pipeline.schedule_run()
        return np.array(labels, np.int64)

    def _geometry(self, content, rng):
        """Return (top, left, height, width) to decode, (height, width) to scale that to, and whether to mirror it.

        The draws are those of :class:`.transforms.TrainTransform`, in its order.
        """
        height, width = image_size(content)
        transform = self.maker.transform
        if not self._training:
            return (0, 0, height, width), transform.scaled_size(height, width), 0
        box = random_crop_box(height, width, transform.crop_scale, transform.crop_ratio, rng)
        mirror = bool(transform.hflip) and rng.random() < transform.hflip
        return box, (transform.image_size, transform.image_size), mirror

    def _run(self, pipeline, order, number):
        try:
            (output,) = pipeline.share_outputs()
        except RuntimeError as error:
            raise self._explain(order, number, error) from None
        images = _copy_by_dlpack(output.as_tensor(), self._device is not None)
        pipeline.release_outputs()
        return images

    def _explain(self, order, number, error):
        """Return a UserError that names the first image of the batch that cannot be decoded."""
        for index, _ in self._batch(order, number):
            try:
                decode(self.dataset.read(index)[0])
            except CorruptImage as reason:
                return UserError(f"{self.dataset.describe(index)}: corrupt image ({reason})")
        return RuntimeError(f"DALI failed in batch {number}: {error}")

    def close(self):
        """Nothing outlives an iteration."""


def _copy_by_dlpack(tensor, on_gpu):
    """Return DALI's tensor as Paddle's on a GPU, else as NumPy's; the one copy is there as DALI uses the buffer again.

    Mixup wants NumPy, and what a model gets costs the same: ``paddle.to_tensor`` copies a Paddle tensor, too.
    """
    if not on_gpu:
        return np.from_dlpack(tensor).copy()
    import paddle

    images = paddle.utils.dlpack.from_dlpack(tensor).clone()
    paddle.device.synchronize()  # the copy is queued on Paddle's stream, of which DALI knows nothing
    return images


def _build_pipeline(transform, batch_size, mean, std, num_threads, device):
    from nvidia.dali import fn, pipeline_def, types

    interpolation = getattr(types, _INTERPOLATIONS[transform.interpolation])
    place = "cpu" if device is None else "mixed"

    @pipeline_def(
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=device,
        prefetch_queue_depth=1,
        exec_dynamic=False,
    )
    def graph():
        contents = fn.external_source(name="contents", dtype=types.UINT8, ndim=1)
        anchors = fn.external_source(name="anchors", dtype=types.INT32, ndim=1)
        shapes = fn.external_source(name="shapes", dtype=types.INT32, ndim=1)
        sizes = fn.external_source(name="sizes", dtype=types.FLOAT, ndim=1)
        mirrors = fn.external_source(name="mirrors", dtype=types.INT32, ndim=0)
        images = fn.decoders.image_slice(
            contents,
            anchors,
            shapes,
            device=place,
            axis_names="HW",
            normalized_anchor=False,
            normalized_shape=False,
            adjust_orientation=False,
            output_type=types.RGB if transform.channels == 3 else types.GRAY,
        )
        # As in cv2, training scales without antialiasing; evaluation follows the configured library.
        antialias = transform.library != "cv2"
        images = fn.resize(images, size=sizes, interp_type=interpolation, antialias=antialias)
        return fn.crop_mirror_normalize(
            images,
            crop=(transform.image_size, transform.image_size),
            rounding="truncate",  # of the centre crop's corner
            mirror=mirrors,
            mean=[255 * value for value in mean],
            std=[255 * value for value in std],
            dtype=types.FLOAT,
            output_layout="CHW",
        )

    pipeline = graph()
    pipeline.build()
    return pipeline


def check_dali(config):
    """Raise UserError when the configuration asks for something that DALI does not do here."""
    data = config.DATA
    try:
        import nvidia.dali  # noqa: F401 (is it there?)
    except ImportError as error:
        raise UserError("DATA.LOADER: dali needs the package nvidia-dali-cuda120, which is not installed") from error
    if image_steps(config) or pixel_steps(config):
        raise UserError(
            "DATA.LOADER: dali does crops, flips, Mixup and CutMix; TRAIN's other augmentation needs workers"
        )
    if data.TRAIN_CROP != "random_resized":
        raise UserError(f"DATA.LOADER: dali has no DATA.TRAIN_CROP={data.TRAIN_CROP}")
    if data.SKIP_CORRUPT:
        raise UserError("DATA.LOADER: dali cannot leave corrupt images out; DATA.SKIP_CORRUPT needs workers")
    if data.EXIF_ORIENTATION:
        raise UserError("DATA.LOADER: dali takes photographs as they lie; DATA.EXIF_ORIENTATION needs workers")
    if data.DALI_GPU and build_batch_transform(config) is not None:
        raise UserError("DATA.DALI_GPU: images on a GPU cannot be mixed here; Mixup and CutMix need DALI_GPU=False")

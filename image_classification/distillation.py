"""Learning from a teacher's logits besides the labels: DeiT's distillation (Touvron et al. 2021, equations 2 and 3).

The teacher sees what the student sees, mixed images too, without gradients and in evaluation mode. It is no part of the
checkpoints: a resumed run reads its weights again.
"""

import paddle
from paddle.nn import functional


class Teacher:
    """A model that is asked and never trained.

    Args:
        model: in evaluation mode, as its precision stores it.
        precision: of its own, so that it may compute in another format than the student.
        student, own: (mean, standard deviation) of the channels as the images come, and as the teacher was trained.
    """

    def __init__(self, model, precision, student, own):
        self._model = model
        self._precision = precision
        (mean, std), (own_mean, own_std) = ([paddle.to_tensor(each, "float32").reshape([1, -1, 1, 1]) for each in both]
                                            for both in (student, own))  # fmt: skip
        self._scale, self._shift = std / own_std, (mean - own_mean) / own_std
        self._same = tuple(map(tuple, student)) == tuple(map(tuple, own))

    @paddle.no_grad()
    def __call__(self, images, labels):
        """Return (labels, the teacher's logits, float32 [B, C]) for a batch of images, [B, channels, H, W]."""
        images = images if self._same else images * self._scale + self._shift
        with self._precision.forward_context():
            logits = self._model(images)
        return labels, logits.astype("float32")


class Distillation:
    """Loss of (labels, teacher's logits), `(1 - alpha) * criterion + alpha * distance from the teacher`.

    hard: the distance is the cross entropy with the teacher's class (equation 3, where alpha is 1/2); soft: tau^2 times
    the Kullback-Leibler divergence of the student from the teacher, both at temperature tau, mean over the batch
    (equation 2; DeiT's code divides by the number of classes, too). A student with two heads gives [B, 2, C] in
    training: the first learns from the labels, the second from the teacher. With one head it learns both.
    """

    def __init__(self, criterion, kind, alpha, tau):
        self._criterion = criterion
        self._kind = kind
        self._alpha = alpha
        self._tau = tau

    def __call__(self, logits, targets):
        """Return the scalar loss of `logits`, [B, C] or [B, 2, C], for what :class:`Teacher` returned."""
        labels, of_teacher = targets
        own, distilled = logits.unbind(axis=1) if logits.ndim == 3 else (logits, logits)
        if self._kind == "hard":
            distance = functional.cross_entropy(distilled, of_teacher.argmax(axis=-1))
        else:
            distance = self._divergence(distilled, of_teacher)
        return (1 - self._alpha) * self._criterion(own, labels) + self._alpha * distance

    def _divergence(self, logits, of_teacher):
        log_probs = functional.log_softmax(logits / self._tau, axis=-1)
        expected = functional.log_softmax(of_teacher / self._tau, axis=-1)
        probs, expected = expected.exp().astype(log_probs.dtype), expected.astype(log_probs.dtype)
        return self._tau**2 * (probs * (expected - log_probs)).sum(axis=-1).mean()

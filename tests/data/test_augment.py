"""Augmentation against torchvision's results, the papers' definitions and NumPy."""

import zlib

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from image_classification.config import build_config
from image_classification.data import build_batch_transform, build_train_loader
from image_classification.data.build import build_train_transform
from image_classification.data.image_ops import OPERATIONS, apply_operation, shift_hue
from image_classification.data.jitter import ColorJitter, RandomErasing
from image_classification.data.mixing import BatchMix, batch_rng, cutmix_box
from image_classification.data.policies import (
    AUTO_AUGMENT_POLICIES,
    AutoAugment,
    RandAugment,
    ThreeAugment,
    TrivialAugment,
    magnitude_of,
)
from image_classification.data.sampler import train_order
from image_classification.data.transforms import TrainTransform
from image_classification.runtime import UserError
from tests.helpers.data_samples import make_config, photo

# zlib.crc32 of the pixels that torchvision 0.29.2 (autoaugment._apply_op, nearest; functional.adjust_hue) makes of
# pattern() with Pillow 13.0.0.
TORCHVISION = {
    ("ShearX", 0.21): 4232526925,
    ("ShearX", -0.3): 153373755,
    ("ShearY", 0.21): 101056788,
    ("ShearY", -0.3): 1217584311,
    ("TranslateX", 7.6): 4200632814,
    ("TranslateX", -7.6): 4225507166,
    ("TranslateY", 7.6): 1053802589,
    ("TranslateY", -7.6): 1542586434,
    ("Rotate", 30): 4252434615,
    ("Rotate", -13.5): 2976469259,
    ("Brightness", 0.9): 3548263359,
    ("Brightness", -0.4): 156205,
    ("Color", 0.9): 3427794125,
    ("Color", -0.4): 2350113320,
    ("Contrast", 0.9): 179836162,
    ("Contrast", -0.4): 3706801500,
    ("Sharpness", 0.9): 2247850949,
    ("Sharpness", -0.4): 2529309315,
    ("Posterize", 4): 791051914,
    ("Posterize", 6): 745517426,
    ("Solarize", 110.0): 3665348331,
    ("Solarize", 0.0): 200599923,
    ("AutoContrast", 0): 3588850483,
    ("Equalize", 0): 1980371538,
    ("Invert", 0): 200599923,
    ("Hue", -0.5): 2492624883,
    ("Hue", -0.1): 2632161522,
    ("Hue", 0.23): 3472594369,
}


def pattern():
    y, x, c = np.mgrid[0:37, 0:53, 0:3]
    return Image.fromarray(((x * 5 + y * 3 + c * 40 + (x * y) // 7 * (c + 1)) % 200 + 20).astype(np.uint8))


@pytest.mark.parametrize(("name", "magnitude"), TORCHVISION)
def test_operation_equals_torchvision_bit_for_bit(name, magnitude):
    image = pattern()
    result = shift_hue(image, magnitude) if name == "Hue" else apply_operation(image, name, magnitude)
    assert zlib.crc32(np.asarray(result).tobytes()) == TORCHVISION[name, magnitude]


@pytest.mark.parametrize(
    ("name", "step", "bins", "wide", "expected"),
    [
        # torchvision's tables for an image 53 wide and 37 high
        ("ShearX", 9, 31, False, 0.09),
        ("TranslateX", 30, 31, False, 150 / 331 * 53),
        ("TranslateY", 30, 31, False, 150 / 331 * 37),
        ("Rotate", 9, 31, False, 9.0),
        ("Color", 10, 31, False, 0.3),
        ("Posterize", 9, 31, False, 7),
        ("Posterize", 30, 31, False, 4),
        ("Solarize", 9, 31, False, 178.5),
        ("ShearX", 30, 31, True, 0.99),
        ("TranslateX", 30, 31, True, 32.0),
        ("Rotate", 30, 31, True, 135.0),
        ("Posterize", 30, 31, True, 2),
        ("Rotate", 9, 10, False, 30.0),
        ("Posterize", 8, 10, False, 4),
        ("Solarize", 3, 10, False, 170.0),
    ],
)
def test_magnitudes_are_those_of_the_published_tables(name, step, bins, wide, expected):
    assert magnitude_of(name, step, bins, (53, 37), wide) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("step", "bins", "threshold"), [(10, 31, 170.0), (20, 31, 85.0), (3, 10, 170.0)])
def test_solarize_inverts_pixels_of_the_threshold_itself(step, bins, threshold):
    assert magnitude_of("Solarize", step, bins, (53, 37)) == threshold  # not 170.00000000000003


def test_auto_augment_has_the_25_pairs_of_each_paper_table():
    imagenet, cifar = AUTO_AUGMENT_POLICIES["imagenet"], AUTO_AUGMENT_POLICIES["cifar10"]
    assert len(imagenet) == len(cifar) == 25
    assert imagenet[0] == (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))
    assert cifar[-1] == (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 0))


def test_auto_augment_applies_a_pair_with_its_probabilities():
    policy = AutoAugment("imagenet")
    policy.pairs = ((("Invert", 1.0, 0), ("Posterize", 0.25, 9)),)
    image = pattern()
    inverted = ImageOps.invert(image)
    twice = ImageOps.posterize(inverted, 4)
    results = [policy(image, np.random.default_rng(seed)).tobytes() for seed in range(400)]
    assert set(results) == {inverted.tobytes(), twice.tobytes()}
    # 400 draws at 0.25: standard deviation 8.7
    assert abs(results.count(twice.tobytes()) - 100) < 35


@pytest.mark.parametrize("policy", [RandAugment(1, 9), TrivialAugment()])
def test_policies_draw_every_operation_and_sign_evenly(policy, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "image_classification.data.policies.apply_operation", lambda *call: drawn.append(call[1:]) or call[0]
    )
    rng = np.random.default_rng(0)
    for _ in range(2800):
        policy(pattern(), rng)
    names = [name for name, _ in drawn]
    assert len(set(names)) == 14
    # 200 draws each: standard deviation 13.6
    assert all(abs(names.count(name) - 200) < 70 for name in set(names))
    angles = [magnitude for name, magnitude in drawn if name == "Rotate"]
    if isinstance(policy, RandAugment):
        assert {round(angle, 6) for angle in angles} == {9.0, -9.0}
    else:
        assert len({round(abs(angle), 6) for angle in angles}) > 25
        assert max(map(abs, angles)) == 135  # of the wide ranges
    assert 60 < sum(angle > 0 for angle in angles) < 140


@pytest.mark.parametrize(("prob", "tolerance"), [(1.0, 0), (0.25, 35)])  # 300 draws at 0.25: standard deviation 7.5
def test_rand_augment_applies_each_of_its_layers_with_its_probability(prob, tolerance, monkeypatch):
    count, image = [], pattern()
    monkeypatch.setattr("image_classification.data.policies.apply_operation", lambda *call: count.append(1) or call[0])
    for seed in range(100):
        RandAugment(3, 10, prob)(image, np.random.default_rng(seed))
    assert abs(len(count) - 300 * prob) <= tolerance


def test_three_augment_is_grey_solarized_or_blurred():
    image = pattern()
    kinds = {ImageOps.grayscale(image).convert("RGB").tobytes(): 0, ImageOps.solarize(image, 128).tobytes(): 0}
    blurred = 0
    for seed in range(150):
        result = ThreeAugment()(image, np.random.default_rng(seed))
        if result.tobytes() in kinds:
            kinds[result.tobytes()] += 1
        else:
            rng = np.random.default_rng(seed)
            rng.integers(3)
            expected = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0)))
            assert result.tobytes() == expected.tobytes()
            blurred += 1
    assert all(30 < number < 70 for number in (blurred, *kinds.values()))  # 50 +- 5.8


def test_color_jitter_draws_its_factors_evenly_in_any_order():
    image = pattern()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        order = rng.permutation(4)
        expected = image
        for index in order:
            if index == 3:
                expected = shift_hue(expected, rng.uniform(-0.1, 0.1))
            else:
                kind, strength = [
                    (ImageEnhance.Brightness, 0.4),
                    (ImageEnhance.Contrast, 0.3),
                    (ImageEnhance.Color, 2.0),
                ][index]
                expected = kind(expected).enhance((rng.uniform(max(0, 1 - strength), 1 + strength) - 1) + 1)
        result = ColorJitter(0.4, 0.3, 2.0, 0.1)(image, np.random.default_rng(seed))
        assert result.tobytes() == expected.tobytes()


def test_grey_images_go_through_every_operation():
    image = pattern().convert("L")
    for name in OPERATIONS:
        assert apply_operation(image, name, 4 if name == "Posterize" else 0.2).mode == "L"
    transform = TrainTransform(20, 1, image_steps=[ThreeAugment(), ColorJitter(0.1, 0.1, 0.1, 0.1)])
    assert transform(np.zeros((30, 30), np.uint8), np.random.default_rng(0)).shape == (20, 20, 1)


@pytest.mark.parametrize("mode", ["pixel", "random", "mean"])
def test_random_erasing_fills_one_box_of_the_asked_size(mode):
    image = np.full((100, 80, 3), 7, np.uint8)
    mean, std = (0.2, 0.4, 0.6), (0.05, 0.1, 0.1)
    erasing = RandomErasing(0.8, mode, mean, std)
    areas, erased, tall, filled = [], 0, 0, []
    for seed in range(400):
        result = erasing(image, np.random.default_rng(seed))
        changed = (result != image).any(axis=2)
        if not changed.any():
            continue
        erased += 1
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert changed.sum() > 0.97 * height * width  # noise may hit the old value by chance
        tall += height > width
        areas.append(height * width / 8000)
        filled.append(result[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].reshape(-1, 3))
    assert (image == 7).all()
    assert abs(erased - 320) < 40  # standard deviation 8
    assert abs(tall - 160) < 45  # ratios are even in their logarithm: standard deviation 9; evenly drawn ones: 245
    assert min(areas) > 0.018 and max(areas) < 0.345
    filled = np.concatenate(filled).astype(float)
    expected_mean, expected_std = {
        "pixel": (np.array(mean) * 255, np.array(std) * 255),
        "random": (127.5, np.sqrt((256**2 - 1) / 12)),
        "mean": (np.round(np.array(mean) * 255), 0),
    }[mode]
    np.testing.assert_allclose(filled.mean(0), expected_mean, atol=0.5)
    np.testing.assert_allclose(filled.std(0), expected_std, atol=0.5)


def test_random_erasing_with_a_colour_draws_one_for_each_box():
    """timm's `rand`: a normal number for each channel, over boxes of the images' mean and standard deviation."""
    mean, std = np.array([0.3, 0.5, 0.6]), np.array([0.05, 0.1, 0.1])
    erasing, colours = RandomErasing(1.0, "colour", mean, std, area=(0.2, 0.3), ratio=(1.0, 1.0)), []
    for seed in range(500):
        result = erasing(np.zeros((20, 20, 3), np.uint8), np.random.default_rng(seed))
        colours += np.unique(result[result.any(axis=2)], axis=0).tolist()
    assert len(colours) == 500
    # five deviations of a mean of 500 draws, and of their spread
    np.testing.assert_allclose(np.mean(colours, axis=0), mean * 255, atol=5 * 25.5 / 500**0.5)
    np.testing.assert_allclose(np.std(colours, axis=0), std * 255, rtol=5 / 1000**0.5)
    assert np.abs(np.corrcoef(np.transpose(colours)) - np.eye(3)).max() < 5 / 500**0.5


def test_random_erasing_draws_another_box_where_one_does_not_fit():
    """Half of these boxes are too wide: ten draws in a row miss one of a thousand images."""
    erasing, image = RandomErasing(1.0, "mean", [0.5], [0.5], area=(0.3, 0.3)), np.zeros((100, 30, 1), np.uint8)
    erased = sum(erasing(image, np.random.default_rng(seed)).any() for seed in range(100))
    assert erased > 97


def test_random_erasing_noise_beyond_black_and_white_stays_at_the_border():
    """A bright mean and a wide noise: half of the values lie above 255; one that wrapped around would be black."""
    erasing = RandomErasing(1.0, "pixel", (0.98, 0.98, 0.02), (0.2, 0.2, 0.2), area=(0.5, 0.6), ratio=(1.0, 1.0))
    result = erasing(np.full((60, 60, 3), 128, np.uint8), np.random.default_rng(0))
    noise = result[(result != 128).all(axis=2)].astype(float)  # [about 2000, 3]
    assert len(noise) > 1500
    bright, dark = noise[:, 0], noise[:, 2]
    # 2 % of the images' range is 5: 0.1 standard deviations, so 46 % lie beyond the border, +- 5 for 2000 draws
    assert 0.41 < (bright == 255).mean() < 0.51 and 0.41 < (dark == 0).mean() < 0.51
    # five standard deviations of 51 inside the border: one draw in 3.5 million
    assert bright.min() > 250 - 5 * 51 and dark.max() < 5 + 5 * 51
    assert (bright < 100).mean() < 0.01 and (dark > 155).mean() < 0.01  # three standard deviations: 0.13 %


@pytest.mark.parametrize("width", [60, 61])  # 48 pixels, and 48.8, of which torchvision takes 48
def test_simple_crop_keeps_the_scale_of_the_short_side(width):
    image = photo(40, width)
    resized = Image.fromarray(image).resize((48, 32), Image.Resampling.BILINEAR)
    padded = np.pad(np.asarray(resized), ((4, 4), (4, 4), (0, 0)), mode="reflect")
    windows = {padded[t : t + 32, x : x + 32].tobytes() for t in range(9) for x in range(25)}
    transform = TrainTransform(32, crop="simple", hflip=0, library="pil")
    got = {transform(image, np.random.default_rng(seed)).tobytes() for seed in range(50)}
    assert got <= windows and len(got) > 30


# ---- batches


def mixed(mixup=0.0, cutmix=0.0, seed=0, **options):
    generator = np.random.default_rng(5)
    images = generator.standard_normal((6, 3, 16, 12)).astype(np.float32)
    labels = np.array([0, 1, 2, 3, 0, 1])
    mix = BatchMix(4, mixup, cutmix, **options)
    new_images, targets = mix(images.copy(), labels, np.random.default_rng(seed))
    _, labels_b, lam = mix.mix(images.copy(), labels, np.random.default_rng(seed))
    return images, labels, new_images, targets, labels_b, lam


def test_mixup_follows_its_definition():
    images, labels, new_images, targets, labels_b, lam = mixed(mixup=0.8)
    rng = np.random.default_rng(0)
    rng.random()
    assert lam == rng.beta(0.8, 0.8)  # one for the batch
    partner = rng.permutation(6)
    np.testing.assert_array_equal(labels_b, labels[partner])
    np.testing.assert_allclose(new_images, lam * images + (1 - lam) * images[partner], atol=1e-6)  # float32
    np.testing.assert_allclose(targets, lam * np.eye(4)[labels] + (1 - lam) * np.eye(4)[labels_b], atol=1e-7)
    assert targets.dtype == np.float32 and new_images.dtype == np.float32


def test_cutmix_pastes_a_box_and_weighs_by_what_is_left():
    for seed in range(20):
        images, labels, new_images, targets, labels_b, lam = mixed(cutmix=1.0, seed=seed)
        rng = np.random.default_rng(seed)
        rng.random()
        drawn = rng.beta(1.0, 1.0)
        partner = rng.permutation(6)
        top, bottom, left, right = cutmix_box(16, 12, drawn, rng)
        inside = np.zeros((16, 12), bool)
        inside[top:bottom, left:right] = True
        np.testing.assert_array_equal(new_images, np.where(inside, images[partner], images))
        assert lam == pytest.approx(1 - inside.mean())
        np.testing.assert_allclose(targets.sum(1), 1, atol=1e-6)


def test_cutmix_box_has_area_one_minus_lambda_where_it_fits():
    rng = np.random.default_rng(0)
    boxes = np.array([cutmix_box(1000, 500, 0.75, rng) for _ in range(2000)])
    heights, widths = boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]
    assert heights.max() == 500 and widths.max() == 250  # side shares sqrt(1 - 0.75)
    whole = (heights == 500) & (widths == 250)
    assert 0.2 < whole.mean() < 0.3  # the centre must lie in the middle half of both axes: a quarter


def test_cutmix_between_two_shares_pastes_a_box_that_lies_inside():
    areas = []
    for seed in range(300):
        images, labels, new_images, targets, labels_b, lam = mixed(cutmix=0.1, seed=seed, cutmix_minmax=(0.25, 0.75))
        # Independent of mix(): the draws in its order, then the definition pixel by pixel.
        rng = np.random.default_rng(seed)
        rng.random()
        rng.beta(1.0, 1.0)  # what alpha would use
        partner = rng.permutation(6)
        height, width = rng.integers(4, 13), rng.integers(3, 10)  # of 16 x 12, the upper ends excluded
        top, left = rng.integers(0, 16 - height + 1), rng.integers(0, 12 - width + 1)
        expected = images.copy()
        for image in range(6):
            for y in range(top, top + height):
                for x in range(left, left + width):
                    expected[image, :, y, x] = images[partner[image], :, y, x]
        np.testing.assert_array_equal(new_images, expected)
        assert lam == 1 - height * width / (16 * 12)
        weights = lam * np.eye(4)[labels] + (1 - lam) * np.eye(4)[labels[partner]]
        np.testing.assert_allclose(targets, weights, atol=1e-7)  # float32
        areas.append(height * width)
    assert min(areas) < 2 * 4 * 3 and max(areas) > 0.8 * 12 * 9


def test_cutmix_between_two_shares_needs_no_alpha_and_is_checked():
    def build(**train):
        return build_batch_transform(build_config([("test", {"TRAIN": train})]))

    assert (
        build(CUTMIX_MINMAX=[0.5, 0.5]).mix(np.zeros((2, 1, 8, 8)), np.arange(2), np.random.default_rng(0))[2] == 0.75
    )
    assert build(CUTMIX_MINMAX="0.2, 0.8", MIXUP_ALPHA=0.8).cutmix_minmax == (0.2, 0.8)
    for wrong in ([0.8, 0.2], [-0.1, 0.5], [0.2, 1.5]):
        with pytest.raises(UserError, match=r"TRAIN.CUTMIX_MINMAX: expected (at least 0|at most 1|the smaller)"):
            build(CUTMIX_MINMAX=wrong)
    with pytest.raises(UserError, match="CUTMIX_MINMAX"):
        build(CUTMIX_MINMAX=[0.2, 0.5, 0.8])


def test_switch_and_probability_share_the_batches():
    kinds = []
    images = np.arange(4 * 3 * 8 * 8, dtype=np.float32).reshape(4, 3, 8, 8)
    mix = BatchMix(4, 0.8, 1.0, probability=0.6, switch_probability=0.25)
    for seed in range(400):
        new, _, lam = mix.mix(images.copy(), np.arange(4), np.random.default_rng(seed))
        if lam == 1.0 and (new == images).all():
            kinds.append("none")
        else:
            kinds.append("cutmix" if np.isin(new, images).all() else "mixup")
    # expected 160, 180, 60, standard deviations up to 10; a Mixup that pairs each image with itself looks like none
    assert abs(kinds.count("none") - 160) < 45 and abs(kinds.count("mixup") - 180) < 40
    assert abs(kinds.count("cutmix") - 60) < 30


def test_off_by_default():
    assert build_batch_transform(build_config([])) is None
    _, labels = next(iter(build_train_loader(make_config(DATASET="digits"))))
    assert labels.dtype == np.int64


# ---- through the loader


def augmented(train, **data):
    data = {"DATASET": "digits", "IMAGE_SIZE": 32, "BATCH_SIZE": 64, "NUM_WORKERS": 0, **data}
    return build_config([("test", {"DATA": data, "MODEL": {"NUM_CLASSES": 10}, "TRAIN": train})])


def test_steps_have_the_values_of_their_keys_and_the_order_of_timm():
    config = augmented({
        "RAND_AUGMENT": True, "RAND_AUGMENT_LAYERS": 3, "RAND_AUGMENT_MAGNITUDE": 7, "RAND_AUGMENT_PROB": 0.25,
        "COLOR_JITTER": [0.4], "RANDOM_ERASE_PROB": 0.125, "RANDOM_ERASE_MODE": "mean",
        "MIXUP_ALPHA": 0.2, "CUTMIX_ALPHA": 0.5, "MIXUP_PROB": 0.25, "MIXUP_SWITCH_PROB": 0.75,
    }, CROP_RATIO=(0.5, 2.0), HFLIP=0.25, INTERPOLATION="bicubic")  # fmt: skip
    transform = build_train_transform(config)
    policy, jitter = transform.image_steps
    (erasing,) = transform.pixel_steps
    assert isinstance(policy, RandAugment) and vars(policy) == vars(RandAugment(3, 7, 0.25))
    assert vars(jitter) == vars(ColorJitter(0.4, 0.4, 0.4))  # one strength is not that of the hue
    assert (erasing.probability, erasing.mode) == (0.125, "mean")
    assert (erasing.area, erasing.ratio) == ((0.02, 1 / 3), (0.3, 1 / 0.3))
    assert (transform.crop_ratio, transform.hflip, transform.interpolation) == ((0.5, 2.0), 0.25, "bicubic")
    assert vars(build_batch_transform(config)) == vars(BatchMix(10, 0.2, 0.5, 0.25, 0.75))
    auto = augmented({"AUTO_AUGMENT": True, "AUTO_AUGMENT_POLICY": "cifar10"})
    assert build_train_transform(auto).image_steps[0].pairs == AUTO_AUGMENT_POLICIES["cifar10"]


EVERYTHING = {
    "RAND_AUGMENT": True,
    "COLOR_JITTER": [0.4],
    "RANDOM_ERASE_PROB": 0.25,
    "MIXUP_ALPHA": 0.8,
    "CUTMIX_ALPHA": 1.0,
    "REPEATED_AUG": 3,
}


def test_everything_together_is_the_same_for_any_workers_and_start():
    def batches(workers, start):
        loader = build_train_loader(augmented(EVERYTHING, NUM_WORKERS=workers))
        loader.set_epoch(2)
        result = list(loader.iterate(start))
        loader.close()
        return result

    reference = batches(0, 0)
    assert len(reference) == 22
    for other, start in ((batches(2, 0), 0), (batches(1, 19), 19)):
        for (images, targets), (other_images, other_targets) in zip(reference[start:], other, strict=True):
            np.testing.assert_array_equal(images, other_images)
            np.testing.assert_array_equal(targets, other_targets)
    images, targets = reference[0]
    assert targets.shape == (64, 10) and targets.dtype == np.float32
    np.testing.assert_allclose(targets.sum(1), 1, atol=1e-6)


def test_ranks_mix_by_different_lambdas():
    loaders = [build_train_loader(augmented({"MIXUP_ALPHA": 0.8}), rank, 2) for rank in range(2)]
    largest = [next(iter(loader))[1].max(axis=1).min() for loader in loaders]
    assert largest[0] != largest[1]


def test_batches_of_each_seed_epoch_place_and_rank_are_mixed_otherwise():
    places = [(0, 1, 2, 3), (4, 1, 2, 3), (0, 4, 2, 3), (0, 1, 4, 3), (0, 1, 2, 4)]
    drawn = [[batch_rng(*place).random() for place in places] for _ in range(2)]
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == len(places)


def test_repeated_augmentation_shows_each_image_several_times_differently():
    order = train_order(100, seed=0, epoch=0, batch_size=10, repeats=3)
    assert len(order) == 100
    np.testing.assert_array_equal(order[:99, 0].reshape(-1, 3), np.repeat(order[:99:3, :1], 3, axis=1))
    assert order[:6, 1].tolist() == [0, 1, 2, 0, 1, 2]
    ranks = [train_order(100, 0, 0, 5, rank, 2, repeats=3) for rank in range(2)]
    np.testing.assert_array_equal(np.stack(ranks, 1).reshape(-1, 2), order)
    images, labels = next(iter(build_train_loader(augmented({"REPEATED_AUG": 3, "RAND_AUGMENT": True}))))
    assert (labels[0:63:3] == labels[1:63:3]).all() and not np.array_equal(images[0], images[1])


@pytest.mark.parametrize(
    ("train", "complaint"),
    [
        ({"RAND_AUGMENT": True, "AUTO_AUGMENT": True}, "AUTO_AUGMENT and TRAIN.RAND_AUGMENT exclude"),
        ({"COLOR_JITTER": [0.1, 0.2]}, "COLOR_JITTER"),
        ({"COLOR_JITTER": [0.1, 0.2, 0.3, 0.6]}, "COLOR_JITTER"),
    ],
)
def test_contradictions_are_errors(train, complaint):
    with pytest.raises(UserError, match=complaint):
        build_train_loader(augmented(train))

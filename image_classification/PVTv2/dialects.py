"""Parameter names of a PVTv2 in its original repository and in PaddleViT; ours are timm's."""

from image_classification.model import Dialect


def rules(embedding: str, projection: str) -> tuple[tuple[str, str], ...]:
    """Return the rules for what both call alike but the embeddings and their convolutions."""
    embeddings = [
        rule
        for stage in range(1, 5)
        for target in ("patch_embed" if stage == 1 else f"stages.{stage - 1}.downsample",)
        for rule in (
            (rf"{embedding}{stage}\.{projection}\.(.*)", rf"{target}.proj.\1"),
            (rf"{embedding}{stage}\.(.*)", rf"{target}.\1"),
        )
    ]
    stages = [
        rule
        for stage in range(4)
        for rule in (
            (rf"block{stage + 1}\.(\d+)\.mlp\.dwconv\.dwconv\.(.*)", rf"stages.{stage}.blocks.\1.mlp.dwconv.\2"),
            (rf"block{stage + 1}\.(.*)", rf"stages.{stage}.blocks.\1"),
            (rf"norm{stage + 1}\.(.*)", rf"stages.{stage}.norm.\1"),
        )
    ]
    return (*embeddings, *stages)


DIALECTS = (
    Dialect("original PVTv2", r"patch_embed1\.proj\.weight", rules("patch_embed", "proj")),
    Dialect("PaddleViT PVTv2", r"patch_embedding1\.patch_embed\.weight", rules("patch_embedding", "patch_embed")),
)

"""Print what parallel training sends and how it is predicted to scale; nothing is run.

    python tools/parallel_cost.py

Expected: two Markdown tables, messages per step of ViT-B/16 and predicted efficiency on 8, 64 and 512 GPUs.
"""

import sys
from pathlib import Path

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.parallel import cost
from image_classification.runtime import Parser, command

MODELS = {
    "ViT-B/16": cost.Transformer(197, 768, 12, 86_567_656),
    "ViT-L/16": cost.Transformer(197, 1024, 24, 304_326_632),
}
# name, images of a replica's micro-batch, micro-batches, degrees of one host; the rest of the GPUs are replicas
LAYOUTS = (
    ("DP", 64, 1, 1, 1),
    ("DP, 4 x accumulated", 64, 4, 1, 1),
    ("TP2", 128, 1, 2, 1),
    ("TP8", 512, 1, 8, 1),
    ("PP4, 16 micro-batches", 16, 16, 1, 4),
)


@command
def main(arguments):
    """Print the tables."""
    Parser(description=__doc__).parse_args(arguments)
    print("| model | DP: MB a step | TP: all-reduces, MB a micro-batch of 64 | PP: MB a micro-batch of 64, each way |")
    print("| --- | --- | --- | --- |")
    for name, model in MODELS.items():
        calls, payload = cost.tensor_all_reduce(model, 64, 2)
        gradients, stage = 4 * model.parameters / 1e6, cost.stage_send(model, 64, 2).bytes / 1e6
        print(f"| {name} | {gradients:.0f} | {calls}, {payload / 1e6:.0f} | {stage:.1f} |")
    print()
    print("Prediction, not measured: share of the ideal speed.\n")
    print("| cluster | model | layout | 8 GPUs | 64 GPUs | 512 GPUs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for cluster in cost.CLUSTERS:
        for name, model in MODELS.items():
            for layout, images, micro_batches, tensor, pipeline in LAYOUTS:
                cells = []
                for gpus in (8, 64, 512):
                    data = gpus // (tensor * pipeline)
                    times = cost.predict(model, cluster, images, micro_batches, data, tensor, pipeline)
                    cells.append(f"{times['efficiency']:.0%}")
                print(f"| {cluster.name} | {name} | {layout} | {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())

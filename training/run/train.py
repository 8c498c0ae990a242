"""Trains the network of a recipe: a few worker processes share one set of weights.

Each worker computes gradients on its own rows with one thread. On two cores two such workers reached 14,300 tokens/s,
one process with two threads 12,200 (both before attention was written in single operations, see model.py).
"""

import logging

import torch
from torch import Tensor

from training.model.checkpoint_files import read_checkpoint
from training.model.model import Bert, initialize_weights
from training.run.recipe import Recipe
from training.run.worker import Shared, Worker


def train(recipe: Recipe) -> None:
    """Starts the other workers and runs the first one in this process."""
    torch.manual_seed(recipe.seed)
    model = Bert(recipe.shape)
    initialize_weights(model)
    if recipe.run.start is not None:
        model.load_state_dict(read_checkpoint(recipe.run.start).state_dict())
    model.to(recipe.device)
    if recipe.workers > 1:
        model.share_memory()
    context = torch.multiprocessing.get_context("spawn")
    size = sum(parameter.numel() for parameter in model.parameters())
    shared = Shared(
        model=model,
        gradients=allocate_gradients(recipe, size=size),
        order=torch.zeros(1, dtype=torch.int64).share_memory_(),
        planned=torch.zeros(1, dtype=torch.int64).share_memory_(),
        barrier=context.Barrier(recipe.workers),
    )
    others = [
        context.Process(target=run_worker, args=(n, shared, recipe), daemon=True) for n in range(1, recipe.workers)
    ]
    for other in others:
        other.start()
    run_worker(0, shared, recipe)
    for other in others:
        other.join()


def allocate_gradients(recipe: Recipe, *, size: int) -> Tensor:
    """[workers, size], in memory that all processes see."""
    gradients = torch.zeros(recipe.workers, size, device=recipe.device)
    return gradients.share_memory_() if recipe.workers > 1 else gradients


def run_worker(number: int, shared: Shared, recipe: Recipe) -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s")
    try:
        Worker(number, shared=shared, recipe=recipe).run()
    except BaseException:
        shared.barrier.abort()  # otherwise the other workers would wait without end
        raise

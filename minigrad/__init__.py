"""minigrad: gradient accumulation from scratch, in plain NumPy.

Read the files in this order: arrays (skip it at first), tensor, functions, losses, randomness,
layers, normalization, batchnorm, flat, optimizers, batches, coupled (skip it at first too),
accumulation; then device, memory, training, streaming, schedules and the edges.
"""

from minigrad.accumulation import StepReport, accumulate
from minigrad.arrays import fractions
from minigrad.batches import micro_batches
from minigrad.batchnorm import BatchNorm, Statistics, momentum_per_micro_batch
from minigrad.coupled import contrastive, coupled, dice
from minigrad.device import available, to_cpu, to_gpu
from minigrad.functions import (
    concatenate,
    embedding,
    exp,
    linear,
    log,
    log_softmax,
    logsumexp,
    max,
    maximum,
    relu,
    sigmoid,
    sqrt,
    stack,
    tanh,
    where,
)
from minigrad.gradcheck import gradcheck
from minigrad.layers import (
    MLP,
    Dropout,
    Embedding,
    Linear,
    Module,
    ReLU,
    Sequential,
    Sigmoid,
    Tanh,
    initial_weight,
    parameter,
)
from minigrad.losses import (
    Loss,
    absolute_error,
    binary_cross_entropy_with_logits,
    cross_entropy,
    penalty,
    per_sample,
    squared_error,
)
from minigrad.memory import Memory, measure_memory
from minigrad.normalization import GroupNorm, LayerNorm
from minigrad.optimizers import SGD, Adam, AdamW, Optimizer
from minigrad.randomness import Samples, current_seed, drawing, manual_seed
from minigrad.schedules import cosine, linear_decay, step_decay, warmup
from minigrad.streaming import Accumulator
from minigrad.tensor import Tensor, no_grad
from minigrad.training import NonFiniteWarning, WeightAverage, clip_grad_norm, train_step

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "SGD",
    "Accumulator",
    "Adam",
    "AdamW",
    "BatchNorm",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "Loss",
    "Memory",
    "Module",
    "NonFiniteWarning",
    "Optimizer",
    "ReLU",
    "Samples",
    "Sequential",
    "Sigmoid",
    "Statistics",
    "StepReport",
    "Tanh",
    "Tensor",
    "WeightAverage",
    "absolute_error",
    "accumulate",
    "available",
    "binary_cross_entropy_with_logits",
    "clip_grad_norm",
    "concatenate",
    "contrastive",
    "cosine",
    "coupled",
    "cross_entropy",
    "current_seed",
    "dice",
    "drawing",
    "embedding",
    "exp",
    "fractions",
    "gradcheck",
    "initial_weight",
    "linear",
    "linear_decay",
    "log",
    "log_softmax",
    "logsumexp",
    "manual_seed",
    "max",
    "maximum",
    "measure_memory",
    "micro_batches",
    "momentum_per_micro_batch",
    "no_grad",
    "parameter",
    "penalty",
    "per_sample",
    "relu",
    "sigmoid",
    "sqrt",
    "squared_error",
    "stack",
    "step_decay",
    "tanh",
    "to_cpu",
    "to_gpu",
    "train_step",
    "warmup",
    "where",
]

"""minigrad: gradient accumulation from scratch, in plain NumPy.

Read the files in this order: arrays (skip it at first), tensor, functions, losses, samples,
randomness, layers, normalization, batchnorm, flat, optimizers, batches, noise and coupling (skip
both at first), accumulation; then device, memory, training, streaming, schedules, layerwise,
stochastic and the edges.
"""

from minigrad.accumulation import StepReport, accumulate
from minigrad.arrays import fractions
from minigrad.batches import micro_batches
from minigrad.batchnorm import BatchNorm, Statistics, momentum_per_micro_batch
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
from minigrad.layerwise import LAMB, LARS, corrected_momentum
from minigrad.losses import (
    Loss,
    absolute_error,
    binary_cross_entropy_with_logits,
    contrastive,
    coupled,
    cross_entropy,
    dice,
    penalty,
    per_sample,
    squared_error,
)
from minigrad.memory import Memory, measure_memory
from minigrad.noise import GradientNoise, SmoothedNoise, batch_noise, trade_off
from minigrad.normalization import GroupNorm, LayerNorm
from minigrad.optimizers import SGD, Adam, AdamW, Optimizer
from minigrad.randomness import current_seed, manual_seed
from minigrad.samples import Samples, drawing
from minigrad.schedules import (
    constant_half_life,
    cosine,
    linear_decay,
    linear_scaling,
    square_root_scaling,
    step_decay,
    step_growth,
    warmup,
)
from minigrad.stochastic import (
    StepRule,
    asymptotic_variance,
    linear_moments,
    polyak_ruppert,
    robbins_monro,
    stationary_variance,
)
from minigrad.streaming import Accumulator
from minigrad.tensor import Tensor, no_grad
from minigrad.training import NonFiniteWarning, WeightAverage, clip_grad_norm, train_step

__version__ = "0.1.0"

__all__ = [
    "LAMB",
    "LARS",
    "MLP",
    "SGD",
    "Accumulator",
    "Adam",
    "AdamW",
    "BatchNorm",
    "Dropout",
    "Embedding",
    "GradientNoise",
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
    "SmoothedNoise",
    "Statistics",
    "StepReport",
    "StepRule",
    "Tanh",
    "Tensor",
    "WeightAverage",
    "absolute_error",
    "accumulate",
    "asymptotic_variance",
    "available",
    "batch_noise",
    "binary_cross_entropy_with_logits",
    "clip_grad_norm",
    "concatenate",
    "constant_half_life",
    "contrastive",
    "corrected_momentum",
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
    "linear_moments",
    "linear_scaling",
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
    "polyak_ruppert",
    "relu",
    "robbins_monro",
    "sigmoid",
    "sqrt",
    "square_root_scaling",
    "squared_error",
    "stack",
    "stationary_variance",
    "step_decay",
    "step_growth",
    "tanh",
    "to_cpu",
    "to_gpu",
    "trade_off",
    "train_step",
    "warmup",
    "where",
]

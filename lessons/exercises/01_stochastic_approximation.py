# %% [markdown]
# # Exercises 01: roots by noisy looks
#
# They train the walk of Robbins and Monro: where it stops, how it is written, how it is averaged
# and what goes wrong with it. They belong to lesson [01](../01_stochastic_approximation.ipynb).
# Minutes: 40; points: 12.
#
# {{practice}}
#
# Write below `# YOUR CODE HERE`, in place of the line that raises an error, and run the check below
# it: it says why.

# %%
import numpy as np

import minigrad as mg
from minigrad import plotting
from minigrad.checking import WrongAnswer, check, chosen, corrected, forbid, grade, predicted, score

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
start = 10  # of exercise 1
root = 4  # of exercise 1
shift = 2  # of exercise 1: the steps are 1 / (n + shift)^2
c = 0.75  # of exercise 2: the steps are c / n
level = 1.5  # of exercise 2
skip = 12  # of exercise 3: so many points are left out
count = 60  # of exercise 3: of so many
k = 3  # of exercise 4: readings at one setting
moves = 5  # of exercise 4
slope = 2.0  # of exercise 4: degrees for each mark on the handle
wanted = 38  # of exercise 4: degrees
rate = 0.5  # of exercise 4: the steps are rate / m^power
power = 0.75  # of exercise 4
noise = [1.0, -0.5, 2.0, 0.25, -1.75, 0.5, -0.25, 1.5, -1.0, 0.75, -2.0, 1.25, -0.75, 0.5, 1.75]
### BEGIN PLANTED
fault = "B"  # which loop stands in exercise 4
### END PLANTED


# %% tags=["draw"]
def draw(rng):
    def ends(k, moves, slope, wanted, rate, power, noise):
        """What a right loop and usual wrong ones give."""
        results = []
        averaged = "right", "sign", "looks", "start", "equal", "last", "whole", "read at"
        for kind in (*averaged, "inside", "point"):
            x, visited = 0.0, []
            for m in range(1, moves + 1):
                readings = noise[(m - 1) * k : m * k]
                a = rate / {"looks": m * k, "equal": 1}.get(kind, m) ** power
                if kind == "inside":
                    for e in readings:
                        x += a * (wanted - 20 - slope * x - e)
                else:
                    seen = [20 + slope * x + e for e in readings]
                    mean = seen[-1] if kind == "last" else sum(seen) / (1 if kind == "whole" else k)
                    x += a * (mean - wanted if kind == "sign" else wanted - mean)
                visited.append(x)
            if kind in ("start", "read at"):
                visited.insert(0, 0.0)
            if kind == "read at":
                visited.pop()
            results.append(x if kind == "point" else sum(visited) / len(visited))
        return results

    first, target = rng.choice(np.arange(-12, 13), 2, replace=False)
    while True:
        slope = float(rng.choice([1.5, 2.0, 2.5]))
        shower = {
            "k": int(rng.integers(2, 5)),
            "moves": int(rng.integers(4, 7)),
            "slope": slope,
            "wanted": int(rng.integers(34, 42)),
            "rate": float(rng.choice([3, 4, 5])) / 8,
            "power": float(rng.choice([0.625, 0.75, 0.875])),
        }
        n = shower["k"] * shower["moves"]
        shower["noise"] = (rng.integers(-8, 9, n) / 4).tolist()
        results = np.array(ends(**shower))
        apart = abs(results - results[:, None])[np.triu_indices(len(results), 1)]
        if min(apart) > 0.1:
            break
    return {
        "start": int(first),
        "root": int(target),
        "shift": int(rng.integers(2, 6)),
        "c": float(rng.choice([0.5, 0.625, 0.75, 0.875])),
        "level": float(rng.choice([-2.5, -1.5, 1.5, 2.5, 3.5])),
        "skip": int(rng.integers(5, 20)),
        "count": int(rng.integers(50, 80)),
        **shower,
        "fault": str(rng.choice(["A", "B", "C", "D", "E"])),
    }


# %% [markdown]
# ## 1. Predict: where does it stop? (1 point + 1)
#
# The root is at {{root}}, and $M(x)$ is a line of slope 1 through it. The looks have *no* noise. A
# walk starts at {{start}} and takes the steps $a_n = 1/(n + {{shift}})^2$ for $n = 1, 2, \dots$
# without end. To which number does $x_n$ go? (Each move multiplies the distance to the root by
# $1 - a_n$. Multiply the first few of these as fractions: what cancels?)

# %% answer="01-predict"
# Assign a number to `prediction`.
### BEGIN SOLUTION
prediction = root + (start - root) * shift / (shift + 1)
### END SOLUTION

# %% check="01-predict"
predicted(prediction)

# %% test="01-predict" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% wrong="no prediction" of="01-predict" earns=0 because="no prediction yet"
prediction = None

# %%
predicted(prediction)
steps = mg.StepRule(1, power=2, shift=shift).first(20_000)
left = mg.linear_moments(steps, slope=1, noise_variance=0, start=start - root).bias
for n in (1, 10, 100, 20_000):
    print(f"after {n:6,} steps, which add up to {sum(steps[:n]):.3f}: x = {root + left[n]:.3f}")
print(f"the root is at {root}; you said {float(prediction):g}")

# %% [markdown]
# One sentence: what happened, and why? If you were right, say why it had to be so.

# %% answer="01-correct"
# Assign a sentence to `correction`.
### BEGIN SOLUTION
correction = "The steps add up to a finite number, so that a part of the start is never forgotten."
### END SOLUTION

# %% check="01-correct"
corrected(correction)

# %% test="01-correct" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: corrected(correction))
### END HIDDEN TESTS

# %% wrong="no sentence" of="01-correct" earns=0 because="expected 6 or more"
correction = "I was right."

# %% [markdown]
# ## 2. Write: the walk (3 points)
#
# The rule of 1951, for a number or for an array of any shape: where more is seen than the level, go
# down, else up. Call `observe` once a step and no more, since each look costs something; it shows
# all elements of an array at once. The picture is a walk in the plane with $M(x) = x$, the steps
# ${{c}}/n$, and the level {{level}} for both numbers.
#
# ```text
# x_0 = start  --look-->  Y_1  --move-->  x_1  --look-->  Y_2  --move-->  x_2  ...
# ```


# %%
class Field:
    """Noisy looks at M(x) = x. It keeps where it looked.

    The noise changes with each move. It is drawn in advance, so that two walks can be compared.
    """

    def __init__(self, shape, looks):
        self.noise = np.random.default_rng(looks).standard_normal((looks, *shape))
        self.places, self.moves = [], 0

    def __call__(self, x):
        if self.places and not np.array_equal(x, self.places[-1]):
            self.moves += 1
        self.places.append(np.array(x, float))
        return x + self.noise[self.moves % len(self.noise)]


steps = mg.StepRule(c).first(200)
shown = mg.robbins_monro(Field((2,), 200), [3.0, -1.0], steps, level)
figure, axis = plotting.subplots(height=3.4)
axis.plot(*shown.T, color=plotting.BLUE, marker="o", ms=3, lw=1)
axis.plot(*shown[0], "s", color=plotting.BLUE, ms=8)
axis.plot(level, level, "o", color=plotting.VIOLET, ms=8, mec="white")
axis.set(xlabel="first number", ylabel="second number")
plotting.show(
    figure,
    "01-walk",
    f"A walk of {len(steps)} looks in the plane, from the square at (3, -1) to the root, the large "
    f"dot at ({level:g}, {level:g}); it ends at ({shown[-1, 0]:.2f}, {shown[-1, 1]:.2f}).",
)


# %% answer="01-walk"
def walk(observe, start, steps, level):
    """The path x_0 = start, x_1, ..., as an array of shape (1 + len(steps), *shape of start).

    observe(x): a noisy look at M(x), of the shape of x. start: a number, or an array of any shape,
    which is not to be changed. steps: a list of numbers. level: a number. In plain loops, for each
    step n and each element i of x:

        x_n[i] is x_(n-1)[i], plus step n times the difference: level less what is seen there
    """
    ### BEGIN SOLUTION
    x, path = start, [start]
    for a in steps:
        x = x + a * (level - observe(x))
        path.append(x)
    return np.array(path)
    ### END SOLUTION


# %% check="01-walk"
def check_walk(start, steps, level):
    """Against the library, with the same noise; one look a step; start as it was."""
    forbid(walk, "robbins_monro")
    shape, looks = np.shape(start), len(steps)
    expected = mg.robbins_monro(Field(shape, looks), start, steps, level)
    given = np.array(start, float) if shape else start
    field = Field(shape, looks)
    found = walk(field, given, steps, level)
    if not np.array_equal(given, start):
        what = "the array `start` has been changed, and each point of the path is this one array"
        raise WrongAnswer("changed", f"{what}: write x = x + ... in place of x += ...")
    what = f"the path has {looks} points for {looks} steps, expected {1 + looks}"
    if same(found, expected[1:]):
        raise WrongAnswer("no start", f"{what}: the start is a point of it, the first one")
    if same(found, expected[:-1]):
        raise WrongAnswer("no end", f"{what}: the point after the last move is missing")
    if same(found, expected[-1]):
        raise WrongAnswer("end only", "this is the last point: return the whole path, from x_0 on")
    if isinstance(found, list | np.ndarray) and np.size(found) > 1 and len(found) != 1 + looks:
        what = f"the path has {len(found)} points for {looks} steps, expected {1 + looks}"
        raise WrongAnswer("points", f"{what}: the start, and one point a step")
    check(expected, found, f"from {np.array(start).tolist()}", also=slips(start, steps, level))
    if len(field.places) != looks:
        what = f"{len(field.places)} looks were taken for {looks} steps"
        raise WrongAnswer("looks", f"{what}: one for each is enough, keep what it shows")
    score("looks", len(field.places), looks)


def same(found, wanted):
    """Is it this array, to rounding?"""
    try:
        return np.shape(found) == np.shape(wanted) and np.allclose(found, wanted, rtol=1e-9)
    except (TypeError, ValueError):  # no array of numbers
        return False


def slips(start, steps, level):
    """Walks with usual mistakes in them, and what to say to them."""

    def walked(change, steps=steps, level=level):
        field = Field(np.shape(start), len(steps))
        return mg.robbins_monro(lambda x: change(field, x), start, steps, level)

    one, rest = [1.0] * len(steps), iter(steps)
    return {
        "away": (
            walked(lambda look, x: 2 * level - look(x)),
            "it walks away from the root: where much is seen, x is to go down",
        ),
        "no level": (
            walked(lambda look, x: look(x), level=0),
            "it walks to where M is 0: the level is not used",
        ),
        "stays": (
            walked(lambda look, x: look(np.array(start))),
            "each look is taken at the start: look where the walk has come to",
        ),
        "no step": (walked(lambda look, x: look(x), one), "the steps are not used: all are 1"),
        "one step": (
            walked(lambda look, x: look(x), steps[:1] * len(steps)),
            "all moves are made with the first step: the next move has the next step",
        ),
        "parentheses": (
            walked(lambda look, x: look(x) - next(rest) * level, one, 0),
            "the step multiplies the level alone: put the difference into parentheses",
        ),
    }


check_walk(3.0, mg.StepRule(c).first(10), level)
check_walk([3.0, -1.0], mg.StepRule(c).first(10), level)

# %% test="01-walk" points=3
### BEGIN HIDDEN TESTS
grade(
    3,
    lambda: check_walk([3.0, -1.0], mg.StepRule(c).first(20), level),
    lambda: check_walk(-2.5, [0.25] * 7, -level),
    lambda: check_walk([[1.0, 2.0], [0.5, -4.0], [0.0, 8.0]], mg.StepRule(c, 0.7).first(9), level),
    lambda: check_walk([1.0], [0.5], level),
    partial={"no start": 2, "no end": 2, "looks": 2, "no level": 1},
)
### END HIDDEN TESTS


# %% wrong="sign" of="01-walk" earns=0 because="walks away from the root"
def walk(observe, start, steps, level):
    x, path = start, [start]
    for a in steps:
        x = x + a * (observe(x) - level)
        path.append(x)
    return np.array(path)


# %% wrong="no level" of="01-walk" earns=1 because="the level is not used"
def walk(observe, start, steps, level):
    x, path = start, [start]
    for a in steps:
        x = x - a * observe(x)
        path.append(x)
    return np.array(path)


# %% wrong="no start" of="01-walk" earns=2 because="the start is a point of it"
def walk(observe, start, steps, level):
    x, path = start, []
    for a in steps:
        x = x + a * (level - observe(x))
        path.append(x)
    return np.array(path)


# %% wrong="no end" of="01-walk" earns=2 because="the point after the last move"
def walk(observe, start, steps, level):
    x, path = start, []
    for a in steps:
        path.append(x)
        x = x + a * (level - observe(x))
    return np.array(path)


# %% wrong="a look for each element" of="01-walk" earns=2 because="one for each is enough"
def walk(observe, start, steps, level):
    path = np.zeros((1 + len(steps), *np.shape(start)))
    path[0] = start
    for n, a in enumerate(steps):
        for i in np.ndindex(np.shape(start)):
            path[n + 1][i] = path[n][i] + a * (level - observe(path[n])[i])
    return path


# %% wrong="no walk" of="01-walk" earns=0 because="the start, and one point a step"
def walk(observe, start, steps, level):
    return steps


# %% wrong="parentheses" of="01-walk" earns=0 because="put the difference into parentheses"
def walk(observe, start, steps, level):
    x, path = start, [start]
    for a in steps:
        x = x + a * level - observe(x)
        path.append(x)
    return np.array(path)


# %% wrong="in place" of="01-walk" earns=0 because="in place of x +="
def walk(observe, start, steps, level):
    x, path = start, [start]
    for a in steps:
        x += a * (level - observe(x))
        path.append(x)
    return np.array(path)


# %% wrong="stays" of="01-walk" earns=0 because="look where the walk has come to"
def walk(observe, start, steps, level):
    x, path = start, [start]
    for a in steps:
        x = x + a * (level - observe(start))
        path.append(x)
    return np.array(path)


# %% wrong="the library" of="01-walk" earns=0 because="uses robbins_monro"
def walk(observe, start, steps, level):
    return mg.robbins_monro(observe, start, steps, level)


# %% [markdown]
# ## 3. Write: the average, in one pass (2 points)
#
# The average of Polyak and Ruppert, of a walk that is too long to be kept: the points come one
# after the other, and each is gone when the next one comes. The first {{skip}} are on the way to
# the root, and are left out. The cost is the number of points that are kept at the same time.
#
# ```text
# x_1  x_2  ...  x_skip | x_(skip+1)  ...  x_n
#        left out       |  their average
# ```


# %% answer="01-average"
def average_of(points, skip):
    """The average of all points after the first `skip`.

    points: an iterator, to be used as in `for x in points:`; each point is an array of one shape,
    and is not to be changed. There are more than skip of them, perhaps millions: keep only a few.

        (x_(skip+1) + x_(skip+2) + ... + x_n) / (n - skip)
    """
    ### BEGIN SOLUTION
    total, taken = 0, 0
    for n, x in enumerate(points, start=1):
        if n > skip:
            total = total + x
            taken += 1
    return total / taken
    ### END SOLUTION


# %% check="01-average"
WIDTH = 5000  # numbers in a point


def stream(n):
    """n points, one after the other; none is kept here."""
    for i in range(n):
        yield np.full(WIDTH, float(i))


def points_kept(n, skip):
    """How many points the function keeps at the same time, at most."""
    average_of(stream(skip + 2), skip)  # once to warm up
    with mg.measure_memory() as memory:
        average_of(stream(n), skip)
    return memory.peak / (8 * WIDTH)


def check_average(n, skip):
    """Against the mean of all points at once; no point changed; few kept."""
    forbid(average_of, "polyak_ruppert")
    points = np.random.default_rng(n).standard_normal((n, 3)) + 5
    before, expected = points.copy(), points[skip:].mean(axis=0)
    found = average_of(iter(points), skip)
    if not np.array_equal(points, before):
        what = "a point of the walk has been changed: your sum is the first point's own array"
        raise WrongAnswer("changed", f"{what}; begin with 0, or with a copy")
    also = {
        "by all": (
            points[skip:].sum(axis=0) / n,
            "the divisor counts the points that are left out: divide by what was added",
        ),
        "all": (points.mean(axis=0), "no point is left out: the first ones are to be skipped"),
        "sum": (points[skip:].sum(axis=0), "this is the sum: it was never divided"),
        "last": (points[-1], "this is the last point alone: add (+=), do not overwrite"),
    }
    if n > skip + 1:
        also["one too many"] = (points[skip + 1 :].mean(axis=0), "one point too many is left out")
        also["divisor"] = (
            points[skip:].sum(axis=0) / (n - skip - 1),
            "the divisor is 1 too small: count the points that are added (enumerate begins at 0)",
        )
    if skip:
        also["one too few"] = (points[skip - 1 :].mean(axis=0), "one point too few is left out")
    check(expected, found, f"{n} points, the first {skip} skipped", also=also)
    kept = points_kept(n, skip)
    score("points kept at the same time", kept, 3)
    if kept > 8 and n > 16:
        what = f"{kept:.0f} points are kept at the same time"
        raise WrongAnswer("memory", f"{what}: a sum and a count are enough, whatever n is")


check_average(count, skip)

# %% test="01-average" points=2
### BEGIN HIDDEN TESTS
grade(
    2,
    lambda: check_average(count, skip),
    lambda: check_average(count + 7, 0),
    lambda: check_average(skip + 1, skip),
    partial={"memory": 1, "by all": 1},
)
### END HIDDEN TESTS


# %% wrong="all kept" of="01-average" earns=1 because="a sum and a count are enough"
def average_of(points, skip):
    return np.mean([x.copy() for x in points][skip:], axis=0)


# %% wrong="by all" of="01-average" earns=1 because="counts the points that are left out"
def average_of(points, skip):
    total = 0
    for n, x in enumerate(points, start=1):
        if n > skip:
            total = total + x
    return total / n


# %% wrong="changed" of="01-average" earns=0 because="begin with 0, or with a copy"
def average_of(points, skip):
    total, taken = None, 0
    for n, x in enumerate(points, start=1):
        if n > skip:
            if total is None:
                total = x
            else:
                total += x
            taken += 1
    total /= taken
    return total


# %% wrong="divisor" of="01-average" earns=0 because="the divisor is 1 too small"
def average_of(points, skip):
    total = 0
    for n, x in enumerate(points):
        if n >= skip:
            total = total + x
    return total / max(n - skip, 1)


# %% wrong="one too few" of="01-average" earns=0 because="one point too few is left out"
def average_of(points, skip):
    total, taken = 0, 0
    for n, x in enumerate(points, start=1):
        if n >= skip:
            total = total + x
            taken += 1
    return total / taken


# %% [markdown]
# ## 4. Find the fault, and mend it (1 point + 2)
#
# A shower is to have {{wanted}} degrees. With the handle at the mark $x$ it has
# $20 + {{slope}}\, x$ degrees, and the thermometer is off by something else each time. The loop
# below is to read it {{k}} times at one setting, take the mean, move the handle, and so on, for
# {{moves}} moves. The steps are $r / m^p$ with $r = {{rate}}$ and $p = {{power}}$, where $m$ counts
# the moves. It is to return the average of the settings *that it moved to*: the setting it begins
# with, 0, is not one of them. It runs, and it is wrong in one way.


# %%
class Shower:
    """read(x): 20 + slope x degrees, and the next noise. It keeps the settings that it was read at.

    After the last noise comes the first again.
    """

    def __init__(self):
        self.settings = []

    def read(self, x):
        self.settings.append(float(x))
        return 20 + slope * x + noise[(len(self.settings) - 1) % len(noise)]


# %% when="fault == 'A'"
def find_setting(read, x, rate, power, k, moves, level):
    total = 0.0
    for m in range(1, moves + 1):
        seen = 0.0
        for _ in range(k):
            seen += read(x)
        x = x + rate / m**power * (seen / k - level)
        total += x
    return total / moves


# %% when="fault == 'B'"
def find_setting(read, x, rate, power, k, moves, level):
    total, n = 0.0, 0
    for _ in range(moves):
        seen = 0.0
        for _ in range(k):
            seen += read(x)
            n += 1
        x = x + rate / n**power * (level - seen / k)
        total += x
    return total / moves


# %% when="fault == 'C'"
def find_setting(read, x, rate, power, k, moves, level):
    settings = [x]
    for m in range(1, moves + 1):
        seen = 0.0
        for _ in range(k):
            seen += read(x)
        x = x + rate / m**power * (level - seen / k)
        settings.append(x)
    return sum(settings) / len(settings)


# %% when="fault == 'D'"
def find_setting(read, x, rate, power, k, moves, level):
    total, m = 0.0, 1
    for _ in range(moves):
        seen = 0.0
        for _ in range(k):
            seen += read(x)
        x = x + rate / m**power * (level - seen / k)
        total += x
    return total / moves


# %% when="fault == 'E'"
def find_setting(read, x, rate, power, k, moves, level):
    total = 0.0
    for m in range(1, moves + 1):
        for _ in range(k):
            seen = read(x)
        x = x + rate / m**power * (level - seen)
        total += x
    return total / moves


# %% [markdown]
# What it does: the settings at which it reads, and what was read there.

# %%
shower = Shower()
returned = find_setting(shower.read, 0.0, rate, power, k, moves, wanted)
for m in range(moves):
    at = shower.settings[m * k]
    readings = [20 + slope * at + e for e in noise[m * k : (m + 1) * k]]
    print(f"at {at:9.3f} it reads", *(f"{one:9.3f}" for one in readings))
print(f"it returns {returned:.3f}; {wanted} degrees are at {(wanted - 20) / slope:.3f}")

choices = ["wrong way", "looks counted", "start averaged", "equal steps", "last look only"]

# %% [markdown]
# The choices: it goes the **wrong way**, up where it should go down; the step rule has the
# **looks counted**, not the moves; the **start is averaged** too; it takes **equal steps**; or of
# the readings at one setting it uses the **last look only**.

# %% answer="01-fault"
# Assign to `fault_found` one of the five `choices`.
### BEGIN SOLUTION
fault_found = dict(zip("ABCDE", choices))[fault]
### END SOLUTION

# %% check="01-fault"
predicted(fault_found, among=choices)

# %% test="01-fault" points=1
### BEGIN HIDDEN TESTS
ends = {}
for name in choices:
    x, visited, read = 0.0, [], Shower().read
    for m in range(1, moves + 1):
        seen = [read(x) for _ in range(k)]
        mean = seen[-1] if name == "last look only" else sum(seen) / k
        a = rate / {"looks counted": m * k, "equal steps": 1}.get(name, m) ** power
        x += a * (mean - wanted if name == "wrong way" else wanted - mean)
        visited.append(x)
    ends[name] = np.mean([0.0, *visited] if name == "start averaged" else visited)
planted = dict(zip("ABCDE", choices))[fault]
assert abs(ends[planted] - returned) < 1e-9 * abs(returned)
because = {
    name: f"{name!r} would return {ends[name]:.4g}; the loop returns {returned:.4g}"
    for name in choices
    if name != planted
}
grade(1, lambda: chosen(planted, fault_found, because))
### END HIDDEN TESTS

# %% wrong="another" of="01-fault" when="fault != 'D'" earns=0 because="would return"
fault_found = "equal steps"

# %% wrong="another" of="01-fault" when="fault == 'D'" earns=0 because="would return"
fault_found = "looks counted"


# %% answer="01-mend"
def mended(read, x, rate, power, k, moves, level):
    """The average of the settings x_1, ..., x_moves, from x_0 = x.

    read(x): a noisy reading at x. For each move m = 1, ..., moves: the mean of k readings where the
    handle is; then a move of rate / m**power times the level less that mean. It may call your own
    walk and average_of.
    """
    ### BEGIN SOLUTION
    total = 0.0
    for m in range(1, moves + 1):
        seen = 0.0
        for _ in range(k):
            seen += read(x)
        x = x + rate / m**power * (level - seen / k)
        total += x
    return total / moves
    ### END SOLUTION


# %% check="01-mend"
def check_mended(k, moves, level):
    """Is it the average of the walk, by k readings a move?"""
    ends, shower = outcomes(k, moves, level), Shower()
    said = {
        "wrong way": "it goes up where it should go down: level less what was read",
        "looks counted": "the step counts readings: let m count the moves",
        "start averaged": "the start is averaged too: it is no estimate, leave it out",
        "equal steps": "all steps are as long as the first: does m grow?",
        "last look only": "only the last reading at each setting counts: add (+=) the others",
        "not divided": "the readings are added up and never divided by k",
        "last point": "this is the last setting alone: the average is asked for",
        "move inside": "it moves after each reading: take all k readings at one setting, then move",
        "read at": "it averages the settings that it read at: take those that it moved to",
    }
    found = mended(shower.read, 0.0, rate, power, k, moves, level)
    also = {name: (ends[name], sentence) for name, sentence in said.items()}
    what = f"{len(shower.settings)} readings, expected k x moves = {k * moves}"
    if len(shower.settings) < k * moves:
        raise WrongAnswer("too few", f"{what}: take k at each setting")
    check(ends["right"], found, f"k = {k}, {moves} moves, level {level}", also=also)
    if len(shower.settings) > k * moves:
        raise WrongAnswer("readings", f"{what}: each is taken once, and kept until the move")


def outcomes(k, moves, level):
    """What the loop is to return, and what usual faults return; by the library."""

    def walked(pick=np.mean, upside_down=False, steps=None):
        read = Shower().read

        def look(x):
            seen = pick([read(x) for _ in range(k)])
            return 2 * level - seen if upside_down else seen

        rule = mg.StepRule(rate, power).first(moves) if steps is None else steps
        return mg.robbins_monro(look, 0.0, rule, level)

    path, every = walked(), mg.StepRule(rate, power).first(k * moves)
    paths = {
        "right": path,
        "wrong way": walked(upside_down=True),
        "looks counted": walked(steps=every[k - 1 :: k]),
        "equal steps": walked(steps=[rate] * moves),
        "last look only": walked(pick=lambda seen: seen[-1]),
        "not divided": walked(pick=np.sum),
    }
    ends = {name: mg.polyak_ruppert(one)[-1] for name, one in paths.items()}
    each = np.repeat(mg.StepRule(rate, power).first(moves), k)
    read = Shower().read
    each_look = mg.robbins_monro(lambda x: np.array(read(x)), 0.0, each, level)
    return {
        **ends,
        "start averaged": path.mean(),
        "last point": path[-1],
        "move inside": each_look[k::k].mean(),
        "read at": path[:-1].mean(),
    }


LIBRARY = "robbins_monro", "polyak_ruppert", "StepRule", "outcomes", "find_setting"
forbid(mended, *LIBRARY)
check_mended(k, moves, wanted)

# %% test="01-mend" points=2
### BEGIN HIDDEN TESTS
grade(
    2,
    lambda: forbid(mended, *LIBRARY),
    lambda: check_mended(k, moves, wanted),
    lambda: check_mended(1, moves + 3, wanted - 3),
    lambda: check_mended(k + 2, 3, wanted + 5),
    partial={"start averaged": 1, "last point": 1, "readings": 1},
)
### END HIDDEN TESTS


# %% wrong="start averaged" of="01-mend" earns=1 because="the start is averaged too"
def mended(read, x, rate, power, k, moves, level):
    settings = [x]
    for m in range(1, moves + 1):
        seen = sum(read(x) for _ in range(k)) / k
        x = x + rate / m**power * (level - seen)
        settings.append(x)
    return sum(settings) / len(settings)


# %% wrong="looks counted" of="01-mend" earns=0 because="let m count the moves"
def mended(read, x, rate, power, k, moves, level):
    total, n = 0.0, 0
    for _ in range(moves):
        seen = 0.0
        for _ in range(k):
            seen += read(x)
            n += 1
        x = x + rate / n**power * (level - seen / k)
        total += x
    return total / moves


# %% wrong="move inside" of="01-mend" earns=0 because="it moves after each reading"
def mended(read, x, rate, power, k, moves, level):
    total = 0.0
    for m in range(1, moves + 1):
        for _ in range(k):
            x = x + rate / m**power * (level - read(x))
        total += x
    return total / moves


# %% wrong="not averaged" of="01-mend" earns=1 because="the last setting alone"
def mended(read, x, rate, power, k, moves, level):
    for m in range(1, moves + 1):
        seen = sum(read(x) for _ in range(k)) / k
        x = x + rate / m**power * (level - seen)
    return x


# %% [markdown]
# ## 5. In your words (2 points, read by a person)
#
# A colleague writes: "We take a constant learning rate, so the walk converges. Against the noise we
# now average {{k}} gradients before each step. That is the averaging of Polyak and Ruppert, and it
# also brings us to the goal with fewer gradients."
#
# Three claims: that it converges, that it is this averaging, that it needs fewer gradients. Say of
# each what is right and what is wrong with it, and why. At most eight sentences.
#
# - **2:** all three are judged rightly and with the reason: to what a constant rate comes; what is
#   averaged, and where; what $k$ looks a move do to the noise, and to the number of moves.
# - **1:** two of them are judged rightly; or all three, without reasons.
# - **0:** otherwise.

# %% [markdown] manual="01-why" points=2
# With a constant rate the walk forgets its start and then stays in a ball around the root; it does
# not converge, and the ball's variance is about half of the rate times that of a look over the
# slope. The mean of {{k}} gradients at one point has {{k}} times less variance, and so has the
# ball; as a standard deviation the noise falls by the root of {{k}} only. This is not the averaging
# of Polyak and Ruppert: they average the points of the walk, after the moves, while here looks at
# one point are averaged, before a move. Nor does it need fewer gradients: the same number of them
# makes {{k}} times fewer moves, so that the way to the goal takes {{k}} times as many.

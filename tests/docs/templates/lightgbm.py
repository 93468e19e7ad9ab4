import numpy as np

random = np.random.default_rng(1)
X = random.normal(size=(500, 4))
y = (X[:, 0] > 0).astype(int)
BLOCK
assert ((booster.predict(X) > 0.5) == y).mean() > 0.95

"""The simulator: a fleet of virtual clients, on the rounds and the training code of the real one.

plan        everything that decides a simulation's numbers
methods/    the methods that can be simulated, and the estimators that devices do not have
data/       a folder or a Hugging Face dataset, read as a device reads its rows, and which clients have which
compute/    the model, and who computes: `work` says what, `crews` where, `together` how clients share passes
run/        the round (`fleet`), what it moves, and the folder that a run leaves and goes on from
noise/      how near estimates of a gradient come to the true one
compare/    runs side by side
"""

"""The simulator: a fleet of virtual clients, on the rounds and the training code of the real one.

plan        everything that decides a simulation's numbers; `methods` are its rows
dataset     a folder or a Hugging Face dataset, read as a device reads its rows
population  the clients, each with rows to train on and rows of its own to be tested on
fleet       the round; `crews` say where its work is done, `work` what it is, `together` how clients share passes
folder      what a run leaves, and goes on from
report      runs side by side
"""

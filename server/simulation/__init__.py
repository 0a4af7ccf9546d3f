"""The simulator: a fleet of virtual clients in one process, on the rounds and the training code of the real one.

datasets    a folder or a Hugging Face dataset, read as a device reads its rows
split       which rows are whose
population  the clients, each with rows to train on and rows of its own to be tested on
draws       the random numbers behind both, the same on every machine
answers     exact match and F1 of answers to questions
"""

class Tensorization: ...


def tensorization_of(*a):
    raise NotImplementedError

"""Roman numerals for the clock tower."""


def to_roman(number):
    raise NotImplementedError

"""Grades ``roman.py`` in the working directory: the share of right answers."""

import importlib.util
import sys


def verify(workspace, task_data):
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location("roman", f"{workspace}/roman.py")
    roman = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(roman)

    numerals, refused = task_data["numerals"], task_data["refused"]
    right = sum(answer(roman, int(n)) == numeral for n, numeral in numerals.items())
    right += sum(answer(roman, n) is ValueError for n in refused)
    cases = len(numerals) + len(refused)
    return {"reward": right / cases, "cases": cases}


def answer(roman, number):
    """What ``to_roman`` returns, or the class of what it raises."""
    try:
        return roman.to_roman(number)
    except Exception as error:
        return type(error)

"""Due dates for the lending desk."""

DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    """True when February of ``year`` has 29 days."""
    return year % 4 == 0 and year % 400 != 0


def days_in_month(year, month):
    """Number of days of a month, 1 to 12."""
    return 29 if month == 2 and is_leap(year) else DAYS[month - 1]


def due_date(year, month, day, loan_days=28):
    """The date ``loan_days`` after a date, as (year, month, day)."""
    day += loan_days
    while day > days_in_month(year, month):
        day -= days_in_month(year, month)
        month += 1
        if month > 12:
            year, month = year + 1, 1
    return year, month, day

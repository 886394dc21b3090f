"""Commands whose numbers no run can take, as JSON: too large, too small, not finite, or no numbers at all."""

NINES = "9" * 400
HUGE = [
    f'{{"action": "change", "{name}": {value}}}'
    for name in ("sigma", "step_size")
    for value in (
        *(NINES, f"-{NINES}", f"{NINES}.5", "9" * 4000, "1e400", "-1e400", "NaN", "Infinity"),
        *(f'"{NINES}"', '"1e400"', '"1e400/L"', '"nan"', "true", "[" * 60 + "]" * 60, '{"sigma": 1}', "[1]", '""'),
    )
]

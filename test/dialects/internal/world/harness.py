"""Does a dialect's operations in the order in which they are declared, and writes how each went."""

import asyncio
import inspect
import json
import os
import time
import traceback

RUN = os.environ["DIALECT_RUN"]
_operations = []


def operation(name, *only):
    """Declares an operation. With `only`, it is done with these packages alone, as in the table."""

    def declare(function):
        if not only or RUN in only or RUN.split("-")[0] in only:
            _operations.append((name, function))
        return function

    return declare


def main():
    with open(os.environ["DIALECT_RESULTS"], "w", encoding="utf-8") as out:
        for name, function in _operations:
            result, began = {"operation": name}, time.monotonic()
            try:
                value = function()
                if inspect.isawaitable(value):

                    async def wait(value=value):
                        return await value

                    asyncio.run(wait())
            except Exception as error:  # noqa: BLE001 - the table says which are right
                result |= {"error": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
            result["seconds"] = round(time.monotonic() - began, 1)
            print(json.dumps(result), file=out, flush=True)

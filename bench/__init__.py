"""How fast Hearth is, and against what: measured from outside, over HTTP, in one run.

Run as `python -m bench`. Imports nothing of the product: it starts the `hearth` command and speaks
to it as any client would. It is no test: a missed target is reported, not failed.
"""

from __future__ import annotations

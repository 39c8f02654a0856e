"""``python -m bench.pictures``: make all pictures of the documentation."""

import asyncio

from bench.pictures import pages, readme, rule

asyncio.run(readme.make())
asyncio.run(pages.take_pictures(rule.FOLDER))
for name, text in rule.pictures().items():
    (rule.FOLDER / name).write_text(text, encoding="utf-8")

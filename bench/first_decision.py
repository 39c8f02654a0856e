"""``python -m bench.first_decision``: make one decision, as a new process of the app does.

Prints the seconds of CPU that this process took for it, from the start of the interpreter. The
environment has the settings. The functions run in the order in which a host runs them.
"""

from __future__ import annotations

import asyncio
import time

import azure.functions as func

import function_app


async def main() -> None:
    registered = function_app.functions.get_functions()
    functions = {each.get_function_name(): each.get_user_function() for each in registered}
    await functions["metric_collector"](timer=None)
    for text in await _received("metrics"):
        await functions["scaling_logic"](message=func.QueueMessage(id="1", body=text.encode()))
    seconds = time.process_time()
    (name,) = function_app.declared
    state = (await function_app.app.scaling.store.load(name)).state
    assert state.rules is not None, "the rules of this process have decided"
    await function_app.app.close()
    print(seconds)


async def _received(queue: str) -> list[str]:
    from azure.storage.queue.aio import QueueClient  # noqa: PLC0415  the app has imported it

    async with QueueClient.from_connection_string(
        function_app.settings.environ["AzureWebJobsStorage"], queue
    ) as client:
        return [message.content async for message in client.receive_messages(messages_per_page=32)]


if __name__ == "__main__":
    asyncio.run(main())

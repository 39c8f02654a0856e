"""Retry policies for the triggers that support them: the function's own, or else host.json's."""

import asyncio
import logging
from dataclasses import replace

from local.functions_host.functions import (
    EVENT_HUB_TRIGGER,
    FIXED_DELAY,
    TIMER_TRIGGER,
    Function,
    RetryPolicy,
)
from local.functions_host.invoker import Invoker
from local.functions_host.logs import log_event
from local.functions_host.waiting import stops_within
from local.functions_host.worker import Invocation, Outcome

# Queue extensions have their own retries and silently ignore a decorator. This host does the same.
RETRIED_TRIGGERS = frozenset({TIMER_TRIGGER, EVENT_HUB_TRIGGER})


def warn_of_ignored_retries(function: Function) -> None:
    """Log a warning at the start if a retry decorator has no effect."""
    if function.retry is None or acting_policy(function) is not None:
        return
    on_trigger = function.trigger.kind in RETRIED_TRIGGERS
    what = f"{function.retry.strategy} retries" if on_trigger else "retries of this trigger"
    where = "locally" if on_trigger else "by the Functions host, here or in Azure"
    log_event(
        logging.WARNING,
        "retry_not_supported",
        f"{function.name}: {what} are not supported {where}",
        function=function.name,
    )


def with_default_retry(function: Function, policy: RetryPolicy | None) -> Function:
    """The function with host.json's policy, if it has none and its trigger supports one."""
    if function.retry is None and function.trigger.kind in RETRIED_TRIGGERS:
        return replace(function, retry=policy)
    return function


def acting_policy(function: Function) -> RetryPolicy | None:
    """The function's retry policy; None if this host does not apply it."""
    policy = function.retry
    if policy is None or policy.strategy != FIXED_DELAY:
        return None
    return policy if function.trigger.kind in RETRIED_TRIGGERS else None


async def invoke_with_retries(
    invoker: Invoker, function: Function, invocation: Invocation, stopping: asyncio.Event
) -> Outcome:
    """Invoke until the function succeeds, the retries are used up, or the host stops."""
    policy = acting_policy(function)
    result = await invoker.invoke(function, invocation)
    retry_count = 0
    while not result.succeeded and policy is not None and _may_retry(policy, retry_count):
        retry_count += 1
        if await stops_within(stopping, policy.delay_seconds):
            return result
        retry = replace(invocation, retry_count=retry_count, max_retry_count=policy.max_retry_count)
        result = await invoker.invoke(function, retry)
    return result


def _may_retry(policy: RetryPolicy, retry_count: int) -> bool:
    return policy.max_retry_count == -1 or retry_count < policy.max_retry_count

"""The scaling rules, in Python: the resources to scale, their metrics and their policies.

This is the file to edit. As shipped, it scales the App Service plan that the settings name, so that
the oldest message of one Service Bus subscription stays younger than the age limit at the lowest
cost. The app estimates the rate per instance from the backlog, and plans with the low end of
the estimate until the estimate is sure. Before the app has seen any work, thresholds on the backlog
decide. For several resources, several metrics or a policy of your own, see docs/rules.md.
"""

from collections.abc import Sequence

from shared.autoscaling import (
    AppServicePlan,
    Cooldown,
    Goal,
    Guards,
    HubMetric,
    Limits,
    Mode,
    QueueAge,
    Resource,
    ServiceBusSubscription,
    Threshold,
    Throughput,
)
from shared.settings import Settings


def resources(settings: Settings) -> Sequence[Resource]:
    """The resources to scale. The app calls this at start and reports all problems together."""
    one = settings.single_resource()
    backlog = f"{one.topic}-{one.subscription}-backlog".replace("/", "-")
    counted = {settings.completed_metric: HubMetric()} if settings.completed_metric else {}
    return [
        Resource(
            name=one.name,
            target=AppServicePlan(one.azure_subscription_id, one.resource_group, one.name),
            metrics={backlog: ServiceBusSubscription(one.topic, one.subscription), **counted},
            policy=QueueAge(
                metric=backlog,
                until_known=Threshold(
                    metric=backlog,
                    upper=one.threshold_up,
                    lower=one.threshold_down,
                    minimum_samples=settings.minimum_samples,
                    step_out=settings.scale_out_step,
                    step_in=settings.scale_in_step,
                ),
                step_seconds=settings.planning_step_seconds,
            ),
            limits=Limits(settings.minimum_capacity, settings.maximum_capacity),
            cooldown=Cooldown(
                settings.scale_out_cooldown_seconds, settings.scale_in_cooldown_seconds
            ),
            guards=Guards(scale_changes_per_hour=settings.scale_changes_per_hour),
            window_seconds=settings.window_seconds,
            goal=Goal(settings.age_limit_minutes, settings.switch_cost, settings.late_penalty),
            throughput=Throughput(
                settings.instance_rate_per_minute,
                settings.dead_time_minutes,
                completed_metric=settings.completed_metric or None,
            ),
            mode=Mode.DRY_RUN if settings.dry_run else Mode.ACTIVE,
        )
    ]

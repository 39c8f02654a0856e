#!/bin/sh
# Deploys the app to a new resource group of the subscription that `az` is logged in to, sends 1,000
# messages, watches the plan scale out and in again, and removes the resource group, whatever happens.
# Usage: infra/try.sh REGION. It is expected to take half an hour and to cost less than a dollar.
# KEEP=1 keeps the resource group. POLL_SECONDS is the pause between two looks.
# A workflow takes the steps one by one and logs in before each, because its login lasts an hour at most:
# `deploy REGION`, `load` and `remove`, each with the name of the resource group in GROUP.
set -eu
cd "$(dirname "$0")/.."

MESSAGES=1000
TOPIC=orders
SUBSCRIPTION=billing
POLL_SECONDS=${POLL_SECONDS:-15}
LOOKS_MAX=${LOOKS_MAX:-100} # 25 minutes
PYTHON=${PYTHON:-.venv/bin/python}
OBJECT_ID='import base64, json, sys; print(json.loads(base64.urlsafe_b64decode(sys.stdin.read().split(".")[1] + "=="))["oid"])'

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

say() {
    printf '%s  %s\n' "$(date -u +%H:%M:%S)" "$*"
}

usage='Usage: infra/try.sh REGION, for example westeurope.'
[ $# -gt 0 ] || fail "$usage"
case $1 in
deploy) steps=$1 region=${2:?$usage} ;;
load | remove) steps=$1 ;;
*)
    [ $# -eq 1 ] || fail "$usage"
    steps='deploy load' region=$1 GROUP=autoscaler-try-$(od -An -N4 -tx1 /dev/urandom | tr -d ' \n')
    ;;
esac
group=${GROUP:?Name the resource group of the step in GROUP.}
command -v az >/dev/null 2>&1 ||
    fail 'The Azure CLI was not found. Install it: https://learn.microsoft.com/cli/azure/install-azure-cli'
command -v "$PYTHON" >/dev/null 2>&1 || [ "$steps" = remove ] || fail "$PYTHON was not found. Run: make setup"
az account show --output none || fail 'Log in first: az login'

plan=/subscriptions/$(az account show --query id --output tsv)/resourceGroups/$group/providers/Microsoft.Web/serverfarms/workers
work=$(mktemp -d)

clean_up() {
    status=$?
    trap - EXIT
    trap '' INT TERM
    rm -rf "$work"
    case "$steps${KEEP:+ keep}" in
    'deploy load') remove ;;
    'deploy load keep') say "The resource group $group was kept. Remove it: az group delete --name $group" ;;
    esac
    exit "$status"
}

# Azure goes on removing the group if this script is stopped after the request.
remove() {
    if [ "$(az group exists --name "$group")" = false ]; then
        say "There is no resource group $group."
        return
    fi
    say "Removing the resource group $group"
    # A custom role is not removed with the resource group that it was made for.
    for role in $(az role definition list --custom-role-only true --resource-group "$group" \
        --query '[].name' --output tsv); do
        az role assignment delete --role "$role" --scope "$plan" --output none || true
        az role definition delete --name "$role" --resource-group "$group" --output none || true
    done
    if ! { az group delete --name "$group" --yes --no-wait --output none &&
        az group wait --name "$group" --deleted --output none; }; then
        fail "The resource group $group could not be removed. It costs money: az group delete --name $group"
    fi
}

# Waits until the command in the arguments after the first prints the first argument.
wait_for() {
    expected=$1
    shift
    looks=0
    while found=$("$@" || echo 'an error') && [ "$found" != "$expected" ]; do
        looks=$((looks + 1))
        [ "$looks" -lt "$LOOKS_MAX" ] || fail "Expected '$expected', but after $looks looks it is '$found'."
        sleep "$POLL_SECONDS"
    done
}

# Repeats the command in the arguments until it succeeds: a new role takes minutes to work.
retry() {
    looks=0
    until "$@"; do
        looks=$((looks + 1))
        [ "$looks" -lt "$LOOKS_MAX" ] || fail "It failed $looks times: $*"
        sleep "$POLL_SECONDS"
    done
}

capacity() {
    az appservice plan show --resource-group "$group" --name workers --query sku.capacity --output tsv
}

functions_count() {
    az functionapp function list --resource-group "$group" --name "$app" \
        --query "length([?ends_with(name, '/metric_collector') || ends_with(name, '/scaling_logic') || ends_with(name, '/scaler') || ends_with(name, '/reconciler')])" \
        --output tsv
}

deploy() {
    say "Creating the resource group $group in $region"
    az group create --name "$group" --location "$region" --tags purpose=autoscaler-try --output none
    az appservice plan create --resource-group "$group" --name workers --is-linux --sku S1 \
        --number-of-workers 1 --output none

    cat >"$work/parameters.json" <<END
{
  "\$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentParameters.json#",
  "contentVersion": "1.0.0.0",
  "parameters": {
    "planIds": { "value": ["$plan"] },
    "topic": { "value": "$TOPIC" },
    "topicSubscription": { "value": "$SUBSCRIPTION" },
    "storageSku": { "value": "Standard_LRS" },
    "settings": {
      "value": {
        "DryRun": "false",
        "InstanceRatePerMinute": "60",
        "DeadTimeMinutes": "1",
        "MinimumCapacity": "1",
        "MaximumCapacity": "2",
        "MinimumSamples": "2",
        "WindowSeconds": "60",
        "ScaleOutCooldownSeconds": "60",
        "ScaleInCooldownSeconds": "60"
      }
    }
  }
}
END

    say 'Deploying infra/main.bicep'
    az deployment group create --resource-group "$group" --name try --template-file infra/main.bicep \
        --parameters "@$work/parameters.json" --output none
    app=$(az deployment group show --resource-group "$group" --name try \
        --query properties.outputs.functionAppName.value --output tsv)

    say "Publishing the package to $app"
    "$PYTHON" -m local.package "$work/app.zip"
    retry az functionapp deployment source config-zip --resource-group "$group" --name "$app" \
        --src "$work/app.zip" --build-remote true --output none
    say 'Waiting until the functions are indexed'
    wait_for 4 functions_count
}

load() {
    # In a workflow, a login gives tokens for further services for ten minutes only. So the token with which
    # messages are sent is requested first. It names its owner, for which Microsoft Graph would need a right.
    who=$(az account get-access-token --resource https://servicebus.azure.net/ --query accessToken --output tsv |
        "$PYTHON" -c "$OBJECT_ID")
    kind=ServicePrincipal
    [ "$(az account show --query user.type --output tsv)" != user ] || kind=User
    say "Sending $MESSAGES messages"
    namespace=$(az servicebus namespace list --resource-group "$group" --query '[0].name' --output tsv)
    az role assignment create --assignee-object-id "$who" --assignee-principal-type "$kind" \
        --role 'Azure Service Bus Data Sender' \
        --scope "$(az servicebus namespace show --resource-group "$group" --name "$namespace" --query id --output tsv)" \
        --output none
    i=0
    while [ "$i" -lt "$MESSAGES" ]; do
        i=$((i + 1))
        printf '{"body": "order %s"}\n' "$i"
    done >"$work/messages.jsonl"
    cat >"$work/settings.json" <<END
{ "Values": { "ServiceBusConnection__fullyQualifiedNamespace": "$namespace.servicebus.windows.net" } }
END
    retry "$PYTHON" -m shared --settings "$work/settings.json" send-messages "$work/messages.jsonl" --topic "$TOPIC"

    say 'Waiting for the scale-out to 2 instances'
    wait_for 2 capacity
    say 'It scaled out. Emptying the subscription, and waiting for the scale-in to 1 instance'
    az servicebus topic subscription delete --resource-group "$group" --namespace-name "$namespace" \
        --topic-name "$TOPIC" --name "$SUBSCRIPTION" --output none
    az servicebus topic subscription create --resource-group "$group" --namespace-name "$namespace" \
        --topic-name "$TOPIC" --name "$SUBSCRIPTION" --output none
    wait_for 1 capacity
    say 'It scaled in. The deployment works.'
}

trap clean_up EXIT
trap 'exit 130' INT TERM
for step in $steps; do
    "$step"
done

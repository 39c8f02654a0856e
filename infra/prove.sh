#!/bin/sh
# Proves the app in a subscription: makes a resource group, deploys into it, runs a load with faults
# (python -m local.prove), writes .local/proof.html, and removes everything, whatever happens.
# Usage: infra/prove.sh [--what-if] [--anonymous] REGION
# --what-if prints what it uses and does, and does nothing. --anonymous leaves names out of the report.
# GROUP names an empty resource group to use instead. It is kept; what this script made in it is not.
# MINUTES is the length of the load (120). KEEP=1 keeps everything. POLL_SECONDS is the pause of a wait.
# A workflow takes the steps one by one and logs in before each, because its login lasts an hour at most:
# `deploy REGION`, `load` and `remove`, each with the same id in RUN.
set -eu
cd "$(dirname "$0")/.."

POLL_SECONDS=${POLL_SECONDS:-15}
LOOKS_MAX=${LOOKS_MAX:-100} # 25 minutes
PYTHON=${PYTHON:-.venv/bin/python}
MINUTES=${MINUTES:-120}
OBJECT_ID='import base64, json, sys; print(json.loads(base64.urlsafe_b64decode(sys.stdin.read().split(".")[1] + "=="))["oid"])'
SETTINGS='import json, sys; from local.prove.script import WHOLE, app_settings; print(json.dumps(app_settings(WHOLE.minutes / float(sys.argv[1]))))'

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

say() {
    printf '%s  %s\n' "$(date -u +%H:%M:%S)" "$*"
}

what_if() {
    cat <<END
It uses, for $MINUTES minutes and some 40 more:
- 1 App Service plan S1 with 1 to 4 instances, on which nothing is deployed
- 1 Function App on Flex Consumption, with 2,048 MB an instance
- 1 Service Bus namespace (Standard) and 1 Event Hubs namespace (Standard, 1 throughput unit)
- 1 storage account (Standard_LRS), Application Insights and a Log Analytics workspace
- 10 alert rules on logs, which notify nobody
Prices: https://azure.microsoft.com/pricing/calculator
It may, and does nothing else in the subscription:
- create and delete a resource group of its own; in a group that GROUP names, what it made there
- define a role that may change the plan, and delete it
- assign roles on these resources to the app, and to you: to send and receive messages, to send events, to
  read the tables, and to send to the queues
- change the plan, restart the app, remove its role on the plan for some minutes, and give it back
- read the activity log of the plan, and the alerts of the resource group
What it runs:
END
    "$PYTHON" -m local.prove --what-if --minutes "$MINUTES"
}

usage='Usage: infra/prove.sh [--what-if] [--anonymous] REGION, for example westeurope.'
anonymous='' steps='' region='' only=''
while [ $# -gt 0 ]; do
    case $1 in
    --what-if) only=what_if ;;
    --anonymous) anonymous=--anonymous ;;
    -*) fail "$usage" ;;
    deploy) steps=$1 region=${2:?$usage} && shift ;;
    load | remove) steps=$1 ;;
    *) [ -z "$region$steps" ] && region=$1 || fail "$usage" ;;
    esac
    shift
done
[ -z "$only" ] || {
    what_if
    exit
}
[ -n "$region$steps" ] || fail "$usage"
if [ -n "$steps" ]; then
    run=${RUN:?Give the same id of the run to each step in RUN.}
else
    steps='deploy load' run=$(od -An -N4 -tx1 /dev/urandom | tr -d ' \n')
    what_if
fi
group=${GROUP:-autoscaler-prove-$run}
name=p$(printf %s "$run" | tr -dc a-z0-9 | tail -c 11)
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
    'deploy load keep') say "Kept. To remove it: RUN=$run ${GROUP:+GROUP=$group }infra/prove.sh remove" ;;
    esac
    exit "$status"
}

made() {
    az resource list --resource-group "$group" --query "[?tags.proof=='$run'].id" --output tsv
}

# Azure goes on removing a group if this script is stopped after the request.
remove() {
    if [ "$(az group exists --name "$group")" = false ]; then
        say "There is no resource group $group."
        return
    fi
    say 'Removing what was made'
    for id in $(made); do
        for assignment in $(az role assignment list --scope "$id" --query '[].id' --output tsv); do
            az role assignment delete --ids "$assignment" --output none || true
        done
    done
    # A custom role is not removed with the resource group that it was made for.
    for role in $(az role definition list --custom-role-only true --resource-group "$group" \
        --query "[?contains(roleName, '($name-')].name" --output tsv); do
        az role definition delete --name "$role" --resource-group "$group" --output none || true
    done
    if [ -n "${GROUP:-}" ]; then
        remove_resources
    elif [ "$(az group show --name "$group" --query tags.proof --output tsv)" != "$run" ]; then
        fail "The resource group $group was not made by this run, so it was kept."
    elif ! { az group delete --name "$group" --yes --no-wait --output none &&
        az group wait --name "$group" --deleted --output none; }; then
        fail "The resource group $group could not be removed. It costs money: az group delete --name $group"
    fi
}

# A resource that another one uses can be deleted only after that one.
remove_resources() {
    passes=0
    while ids=$(made) && [ -n "$ids" ]; do
        passes=$((passes + 1))
        [ "$passes" -le 5 ] || fail "These could not be removed. They cost money:" "$ids"
        for id in $ids; do
            az resource delete --ids "$id" --output none || true
        done
    done
    left=$(az resource list --resource-group "$group" --query '[].id' --output tsv)
    [ -z "$left" ] || say "The resource group $group has resources that this run did not make: $left"
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

functions_count() {
    az functionapp function list --resource-group "$group" --name "$app" \
        --query "length([?ends_with(name, '/metric_collector') || ends_with(name, '/scaling_logic') || ends_with(name, '/scaler') || ends_with(name, '/metric_ingest')])" \
        --output tsv
}

output() {
    az deployment group show --resource-group "$group" --name "prove-$run" \
        --query "properties.outputs.$1.value" --output tsv
}

deploy() {
    if [ -z "${GROUP:-}" ]; then
        say "Creating the resource group $group in $region"
        [ "$(az group exists --name "$group")" = false ] || fail "The resource group $group exists already."
        az group create --name "$group" --location "$region" --tags "proof=$run" --output none
    elif [ "$(az resource list --resource-group "$group" --query 'length(@)' --output tsv)" != 0 ]; then
        fail "The resource group $group is not empty. Give an empty one, or none."
    fi
    az appservice plan create --resource-group "$group" --name workers --location "$region" --is-linux \
        --sku S1 --number-of-workers 1 --tags "proof=$run" --output none

    cat >"$work/parameters.json" <<END
{
  "\$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentParameters.json#",
  "contentVersion": "1.0.0.0",
  "parameters": {
    "name": { "value": "$name" },
    "location": { "value": "$region" },
    "tags": { "value": { "proof": "$run" } },
    "planIds": { "value": ["$plan"] },
    "topic": { "value": "orders" },
    "topicSubscription": { "value": "billing" },
    "eventHub": { "value": true },
    "storageSku": { "value": "Standard_LRS" },
    "settings": { "value": $("$PYTHON" -c "$SETTINGS" "$MINUTES") }
  }
}
END

    say 'Deploying infra/main.bicep'
    az deployment group create --resource-group "$group" --name "prove-$run" --template-file infra/main.bicep \
        --parameters "@$work/parameters.json" --output none
    app=$(output functionAppName)
    say "Publishing the package to $app"
    "$PYTHON" -m local.package "$work/app.zip"
    retry az functionapp deployment source config-zip --resource-group "$group" --name "$app" \
        --src "$work/app.zip" --build-remote true --output none
    say 'Waiting until the functions are indexed'
    wait_for 4 functions_count
}

assign() {
    az role assignment create --assignee-object-id "$who" --assignee-principal-type "$kind" --role "$1" \
        --scope "$2" --output none
}

id_of() {
    made | grep "/$1/[^/]*\$"
}

load() {
    # In a workflow, a login gives tokens for further services for ten minutes only, so all are requested
    # first. A token names its owner, for which Microsoft Graph would need a right.
    for service in servicebus.azure.net eventhubs.azure.net storage.azure.com; do
        who=$(az account get-access-token --resource "https://$service/" --query accessToken --output tsv |
            "$PYTHON" -c "$OBJECT_ID")
    done
    kind=ServicePrincipal
    [ "$(az account show --query user.type --output tsv)" != user ] || kind=User
    app=$(output functionAppName)
    account=$(output appAccountName)
    bus=$(id_of Microsoft.ServiceBus/namespaces)
    hub=$(id_of Microsoft.EventHub/namespaces)
    storage=${bus%/providers/*}/providers/Microsoft.Storage/storageAccounts/$account
    assign 'Azure Service Bus Data Sender' "$bus"
    assign 'Azure Service Bus Data Receiver' "$bus"
    assign 'Azure Event Hubs Data Sender' "$hub"
    assign 'Storage Table Data Reader' "$storage"
    assign 'Storage Queue Data Message Sender' "$storage"
    connection="\"EventHubConnection__fullyQualifiedNamespace\":\"${hub##*/}.servicebus.windows.net\","
    output commandSettings | sed "s/\"Values\":{/&$connection/" >"$work/settings.json"
    # A new role takes minutes to work.
    retry "$PYTHON" -m shared --settings "$work/settings.json" status --json >"$work/status.json"
    # shellcheck disable=SC2086  # the option may be empty
    "$PYTHON" -m local.prove --minutes "$MINUTES" --plan "$plan" --app "$app" --settings "$work/settings.json" $anonymous
}

trap clean_up EXIT
trap 'exit 130' INT TERM
for step in $steps; do
    "$step"
done

// The app and all that it needs, in one resource group: `az deployment group create`.
// `azd up` comes in by azd.bicep. No key is created, stored or handed over anywhere.

@description('Beginning of the names of all resources.')
@minLength(2)
@maxLength(12)
param name string = 'autoscaler'

param location string = resourceGroup().location

@description('Resource ids of the App Service Plans to scale. The settings name the first one.')
@minLength(1)
param planIds string[]

@description('The topic whose backlog is watched.')
param topic string

@description('The subscription of that topic.')
param subscription string

@description('Resource id of the Service Bus namespace with that topic; empty: a new one is made.')
param serviceBusNamespaceId string = ''

@description('Settings of the app that differ from local.settings.json.example, by name.')
param settings object = {}

@description('Settings that are secrets, such as BreakerApprovalKey; they stay out of the history.')
@secure()
param secretSettings object = {}

@description('Make an event hub for metrics that come as events.')
param eventHub bool = false

@description('Let diagnostic settings send to that hub, which takes a shared access policy.')
param eventHubSharedAccess bool = false

@description('Who is told of alerts.')
param alertEmails string[] = []

@description('Version of Python, 3.11 or newer.')
param pythonVersion string = '3.11'

@description('Of both storage accounts; not every region has zones.')
param storageSku string = 'Standard_ZRS'

param tags object = {}

var suffix = uniqueString(resourceGroup().id, name)
var unique = '${name}-${suffix}'
var plan = split(planIds[0], '/')

// Every setting that the app knows, with its default. A connection is said otherwise here.
var example = loadJsonContent('../local.settings.json.example').Values
var saidOtherwise = [
  'FUNCTIONS_WORKER_RUNTIME'
  'AzureWebJobsStorage'
  'ServiceBusConnection'
  'EventHubConnection'
]
var defaults = toObject(
  filter(items(example), each => !contains(saidOtherwise, each.key)),
  each => each.key,
  each => each.value
)
var chosen = union(
  defaults,
  {
    SubscriptionId: plan[2]
    ResourceGroup: plan[4]
    ResourceToScale: plan[8]
    Topic: topic
    Subscription: subscription
    ArmEndpoint: environment().resourceManager
    EventHubConsumerGroup: 'autoscaler'
  },
  settings
)

var makesNamespace = empty(serviceBusNamespaceId)
var newNamespaceId = resourceId('Microsoft.ServiceBus/namespaces', '${unique}-bus')
var namespaceId = makesNamespace ? newNamespaceId : serviceBusNamespaceId

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: unique
  location: location
  tags: tags
}

module storage 'modules/storage.bicep' = {
  name: 'storage'
  params: {
    appAccount: 'app${suffix}'
    telemetryAccount: 'tel${suffix}'
    sku: storageSku
    location: location
    tags: tags
    principalId: identity.properties.principalId
    telemetryQueue: chosen.TelemetryQueue
    readsTelemetry: !empty(chosen.TrendsSubmitter)
  }
}

module monitoring 'modules/monitoring.bicep' = {
  name: 'monitoring'
  params: {
    name: unique
    location: location
    tags: tags
    principalId: identity.properties.principalId
    telemetryAccountId: storage.outputs.telemetryAccountId
    alertEmails: alertEmails
  }
}

module arrivals 'modules/arrivals.bicep' = {
  name: 'arrivals'
  params: {
    name: unique
    location: location
    tags: tags
    telemetryAccount: storage.outputs.telemetryAccountName
    appAccount: storage.outputs.appAccountName
    telemetryQueue: chosen.TelemetryQueue
    undeliveredContainer: storage.outputs.undeliveredContainer
  }
}

module newServiceBus 'modules/service_bus_namespace.bicep' = if (makesNamespace) {
  name: 'service-bus-namespace'
  params: {
    name: last(split(newNamespaceId, '/'))
    location: location
    tags: tags
    topic: topic
    subscription: subscription
  }
}

module serviceBus 'modules/service_bus.bicep' = {
  name: 'service-bus'
  scope: resourceGroup(split(namespaceId, '/')[2], split(namespaceId, '/')[4])
  params: {
    namespaceName: last(split(namespaceId, '/'))
    principalId: identity.properties.principalId
    topic: topic
    processes: !empty(chosen.ProcessingPeriodHours)
    processingQueue: chosen.ProcessingQueue
    workingQueue: chosen.WorkingQueue
    app: unique
    tags: tags
    actionGroupIds: monitoring.outputs.actionGroupIds
  }
  dependsOn: [newServiceBus]
}

module hub 'modules/event_hub.bicep' = if (eventHub) {
  name: 'event-hub'
  params: {
    name: '${unique}-hub'
    location: location
    tags: tags
    principalId: identity.properties.principalId
    hubName: chosen.EventHubName
    consumerGroup: chosen.EventHubConsumerGroup
    readBackConsumerGroup: chosen.EventHubReadBackConsumerGroup
    sharedAccess: eventHubSharedAccess
  }
}

// One at a time: plans of one resource group share a role definition.
@batchSize(1)
module plans 'modules/plan_role.bicep' = [
  for planId in planIds: {
    name: 'plan-${uniqueString(planId)}'
    scope: resourceGroup(split(planId, '/')[2], split(planId, '/')[4])
    params: {
      plan: split(planId, '/')[8]
      app: unique
      principalId: identity.properties.principalId
    }
  }
]

module functionApp 'modules/function_app.bicep' = {
  name: 'function-app'
  params: {
    name: unique
    location: location
    tags: tags
    identityId: identity.id
    identityClientId: identity.properties.clientId
    pythonVersion: pythonVersion
    appAccount: storage.outputs.appAccountName
    packageContainer: storage.outputs.packageContainer
    serviceBusHost: serviceBus.outputs.host
    eventHubHost: eventHub ? hub.outputs.host : ''
    insightsName: monitoring.outputs.insightsName
    settings: chosen
    secretSettings: secretSettings
  }
  dependsOn: [plans]
}

output functionAppName string = functionApp.outputs.name
output identityPrincipalId string = identity.properties.principalId
output telemetryAccountName string = storage.outputs.telemetryAccountName

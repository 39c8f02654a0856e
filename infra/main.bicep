// The app and all resources that it needs, in one resource group: `az deployment group create`.
// `azd up` uses azd.bicep, which deploys this file. No key is created, stored or passed on.

@description('Prefix of the names of all resources.')
@minLength(2)
@maxLength(12)
param name string = 'autoscaler'

param location string = resourceGroup().location

@description('Resource ids of the App Service Plans to scale. The settings refer to the first one.')
@minLength(1)
param planIds string[]

@description('Topic whose backlog the app reads.')
param topic string

@description('Subscription of that topic.')
param subscription string

@description('Resource id of the Service Bus namespace with that topic. Empty: a new one is created.')
param serviceBusNamespaceId string = ''

@description('App settings, by name, that differ from local.settings.json.example.')
param settings object = {}

@description('Secret settings, such as BreakerApprovalKey. They do not appear in the deployment history.')
@secure()
param secretSettings object = {}

@description('Create an event hub for metrics that arrive as events.')
param eventHub bool = false

@description('Let diagnostic settings send to the event hub. They require a shared access policy.')
param eventHubSharedAccess bool = false

@description('Email addresses that receive alerts.')
param alertEmails string[] = []

@description('Python version, 3.11 or newer.')
param pythonVersion string = '3.11'

@description('Memory of an instance of the app in MB: 512, 2048 or 4096. The cost is proportional to it.')
param instanceMemoryMB int = 2048

@description('SKU of both storage accounts. Zone redundancy is not available in every region.')
param storageSku string = 'Standard_ZRS'

param tags object = {}

var suffix = uniqueString(resourceGroup().id, name)
var unique = '${name}-${suffix}'
var plan = split(planIds[0], '/')

// Every setting of the app with its default. Connections are set in modules/function_app.bicep.
var example = loadJsonContent('../local.settings.json.example').Values
var connectionSettings = [
  'FUNCTIONS_WORKER_RUNTIME'
  'AzureWebJobsStorage'
  'ServiceBusConnection'
  'EventHubConnection'
]
var defaults = toObject(
  filter(items(example), each => !contains(connectionSettings, each.key)),
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
    ServiceBusNamespaceIds: namespaceId
  },
  settings
)

var makesNamespace = empty(serviceBusNamespaceId)
var newNamespaceId = resourceId('Microsoft.ServiceBus/namespaces', '${unique}-bus')
var namespaceId = makesNamespace ? newNamespaceId : serviceBusNamespaceId

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = {
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

// One at a time, because plans in the same resource group share a role definition.
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
    instanceMemoryMB: instanceMemoryMB
    appAccount: storage.outputs.appAccountName
    packageContainer: storage.outputs.packageContainer
    serviceBusHost: serviceBus.outputs.host
    eventHubHost: eventHub ? hub!.outputs.host : ''
    insightsName: monitoring.outputs.insightsName
    settings: chosen
    secretSettings: secretSettings
  }
  dependsOn: [plans]
}

output functionAppName string = functionApp.outputs.name
output identityPrincipalId string = identity.properties.principalId
output telemetryAccountName string = storage.outputs.telemetryAccountName

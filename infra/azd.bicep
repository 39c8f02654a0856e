// `azd up`: a resource group of its own, and all of main.bicep in it.
targetScope = 'subscription'

param environmentName string
param location string

@description('Resource id of the App Service Plan to scale.')
param planId string

param topic string
param subscription string
param serviceBusNamespaceId string = ''
param settings object = {}

@secure()
param secretSettings object = {}

param eventHub bool = false
param alertEmails string[] = []

var tags = { 'azd-env-name': environmentName }

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: 'rg-${environmentName}'
  location: location
  tags: tags
}

module autoscaler 'main.bicep' = {
  name: 'autoscaler'
  scope: group
  params: {
    location: location
    planIds: [planId]
    topic: topic
    subscription: subscription
    serviceBusNamespaceId: serviceBusNamespaceId
    settings: settings
    secretSettings: secretSettings
    eventHub: eventHub
    alertEmails: alertEmails
    tags: tags
  }
}

output AZURE_FUNCTION_APP_NAME string = autoscaler.outputs.functionAppName

// The Function App on Flex Consumption. All connections use the managed identity.

param name string
param location string
param tags object
param identityId string
param identityClientId string
param pythonVersion string
param instanceMemoryMB int
param maximumInstanceCount int
param alwaysReady { name: string, instanceCount: int }[]
param siteUpdateStrategy string
param zoneRedundant bool
param publicNetworkAccess string
param appAccount string
param packageContainer string
param serviceBusHost string
param insightsName string

@description('Empty: the app connects from no virtual network.')
param subnetId string

@description('Empty: the app reads no event hub, unless a setting names one.')
param eventHubHost string

@description('Settings of the app, except connections.')
param settings object

@secure()
param secretSettings object

resource storage 'Microsoft.Storage/storageAccounts@2025-01-01' existing = { name: appAccount }

resource insights 'Microsoft.Insights/components@2020-02-02' existing = { name: insightsName }

var connections = {
  AZURE_CLIENT_ID: identityClientId
  AzureWebJobsStorage__credential: 'managedidentity'
  AzureWebJobsStorage__clientId: identityClientId
  AzureWebJobsStorage__blobServiceUri: storage.properties.primaryEndpoints.blob
  AzureWebJobsStorage__queueServiceUri: storage.properties.primaryEndpoints.queue
  AzureWebJobsStorage__tableServiceUri: storage.properties.primaryEndpoints.table
  ServiceBusConnection__credential: 'managedidentity'
  ServiceBusConnection__clientId: identityClientId
  ServiceBusConnection__fullyQualifiedNamespace: serviceBusHost
  APPLICATIONINSIGHTS_CONNECTION_STRING: insights.properties.ConnectionString
  APPLICATIONINSIGHTS_AUTHENTICATION_STRING: 'ClientId=${identityClientId};Authorization=AAD'
}

// Limits of the host. No request of this app is larger, and one function answers without a key.
var limits = {
  FUNCTIONS_REQUEST_BODY_SIZE_LIMIT: '262144'
}

var eventHub = {
  EventHubConnection__credential: 'managedidentity'
  EventHubConnection__clientId: identityClientId
  EventHubConnection__fullyQualifiedNamespace: eventHubHost
}

resource plan 'Microsoft.Web/serverfarms@2025-03-01' = {
  name: '${name}-functions'
  location: location
  tags: tags
  kind: 'functionapp'
  sku: { tier: 'FlexConsumption', name: 'FC1' }
  properties: { reserved: true, zoneRedundant: zoneRedundant }
}

resource app 'Microsoft.Web/sites@2025-03-01' = {
  name: name
  location: location
  tags: union(tags, { 'azd-service-name': 'autoscaler' })
  kind: 'functionapp,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: { '${identityId}': {} }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    publicNetworkAccess: publicNetworkAccess
    virtualNetworkSubnetId: empty(subnetId) ? null : subnetId
    siteConfig: {
      http20Enabled: true
      minTlsVersion: '1.2'
      scmMinTlsVersion: '1.2'
    }
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${storage.properties.primaryEndpoints.blob}${packageContainer}'
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identityId
          }
        }
      }
      scaleAndConcurrency: {
        alwaysReady: alwaysReady
        maximumInstanceCount: maximumInstanceCount
        instanceMemoryMB: instanceMemoryMB
      }
      #disable-next-line BCP037 // missing in the type: learn.microsoft.com/azure/azure-functions/flex-consumption-site-updates
      siteUpdateStrategy: { type: siteUpdateStrategy }
      runtime: { name: 'python', version: pythonVersion }
    }
  }

  resource appSettings 'config' = {
    name: 'appsettings'
    properties: union(settings, limits, connections, empty(eventHubHost) ? {} : eventHub, secretSettings)
  }

  // App Service refuses a change of a site while another one runs, so these follow each other.
  // It also refuses a policy without `location`, which no other child resource of a site has.
  resource ftp 'basicPublishingCredentialsPolicies' = {
    name: 'ftp'
    #disable-next-line BCP187 // missing in the type, but required: github.com/Azure/bicep/issues/7396
    location: location
    properties: { allow: false }
    dependsOn: [appSettings]
  }

  resource scm 'basicPublishingCredentialsPolicies' = {
    name: 'scm'
    #disable-next-line BCP187 // missing in the type, but required: github.com/Azure/bicep/issues/7396
    location: location
    properties: { allow: false }
    dependsOn: [ftp]
  }
}

output name string = app.name
output host string = app.properties.defaultHostName

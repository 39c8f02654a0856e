// A new Service Bus namespace with the topic to read, used if no existing namespace is given.

param name string
param location string
param tags object
param publicNetworkAccess string
param topic string
param subscription string

// Only the tier Premium has private endpoints. A namespace of the tier Standard cannot become one.
var tier = publicNetworkAccess == 'Enabled' ? 'Standard' : 'Premium'

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' = {
  name: name
  location: location
  tags: tags
  sku: { name: tier, tier: tier }
  properties: {
    publicNetworkAccess: publicNetworkAccess
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
  }

  resource watched 'topics' = {
    name: topic
    properties: {}

    resource by 'subscriptions' = {
      name: subscription
      properties: { deadLetteringOnMessageExpiration: true }
    }
  }
}
